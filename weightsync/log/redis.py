"""The version log in Redis: records, fleet and hints as keys of one slot, each transition one script."""

import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any

import msgpack
import redis

from weightsync.errors import BaseMismatch
from weightsync.log import scripts
from weightsync.log.base import TOPICS, Pin, Wish, fenced
from weightsync.log.records import MergedDelta, Upload, VersionRecord, pack_anchor
from weightsync.log.redis_client import answers, connect
from weightsync.log.redis_fleet import FLEET, RedisFleet
from weightsync.versions import label, unpack

_BLOCK_S = 5.0  # of one XREAD: below the socket's timeout, so that a quiet stream is not taken for a lost server
_NAMES = (
    *("owner", "head", "records", "anchors", "merged", "nonces", "digests", "hints", "documents", "endpoints"),
    *(*FLEET, "needs", "orders", "adoptions", "wish", "pin"),
)


def packed(version: int | None) -> str:
    """A version as the scripts compare it."""
    return "" if version is None else f"{version:020d}"


class RedisWatch:
    """A place in the stream of hints."""

    def __init__(self, client: "redis.Redis", key: str, topics: Collection[str]) -> None:
        self._client, self._key = client, key
        self._topics = {topic.encode() for topic in topics}
        self._lock = threading.Lock()
        with answers("a new watch"):
            last: Any = client.xrevrange(key, count=1)
        self._cursor: bytes = last[0][0] if last else b"0-0"

    def wait(self, deadline_s: float) -> bool:
        """Block in Redis until a hint of the topics comes, or the deadline."""
        end = monotonic() + deadline_s
        while (left := end - monotonic()) > 0:
            with answers("the wait for hints"):
                block_ms = max(1, int(min(left, _BLOCK_S) * 1000))
                found: Any = self._client.xread({self._key: self._cursor}, block=block_ms, count=256)
            if not found:
                continue
            # A list of (key, entries) or, in newer redis-py, a mapping.
            entries = next(iter(found.values())) if isinstance(found, dict) else found[0][1]
            with self._lock:
                self._cursor = entries[-1][0]
            if any(fields.get(b"topic") in self._topics for _, fields in entries):
                return True
        return False


class RedisLog(RedisFleet):
    """VersionLog over Redis. Thread-safe."""

    def __init__(self, url: str, run: str) -> None:
        self.run = run
        super().__init__(connect(url), {name: f"{{{run}}}:w:{name}" for name in _NAMES})
        self._claim = ""
        self._shared: RedisWatch | None = None
        self._lock = threading.Lock()

    def claim(self, branch: int) -> None:
        nonce = self._claim or secrets.token_hex(8)
        self._decide(self._run(scripts.CLAIM, ["owner", "hints"], branch, nonce), f"claim of branch {branch}")
        self._claim = nonce

    def confirm(self, branch: int) -> None:
        owner, nonce = self._owner()
        if owner > branch or (owner == branch and self._claim not in ("", nonce)):
            raise fenced(f"branch {branch}", owner)

    def owner(self) -> int:
        return self._owner()[0]

    def flip(self, base: int | None, record: VersionRecord) -> None:
        digest, branch = f"{record.digest:016x}", unpack(record.version)[0]
        anchor = pack_anchor(record.anchor) if record.anchor is not None else b""
        keys = ["owner", "head", "records", "anchors", "nonces", "digests", "hints"]
        version = (packed(record.version), packed(base), record.to_bytes(), record.nonce, digest, anchor)
        answer = self._run(scripts.FLIP, keys, branch, self._claim, *version)
        self._decide(answer, f"flip of {label(base)} -> {label(record.version)}")

    def commit_anchor(self, branch: int, anchor: Upload) -> None:
        keys = ["owner", "records", "anchors", "hints"]
        committed = (packed(anchor.version), pack_anchor(anchor))
        answer = self._run(scripts.COMMIT_ANCHOR, keys, branch, self._claim, *committed)
        self._decide(answer, f"anchor of {label(anchor.version)}")

    def commit_merged(self, branch: int, merged: MergedDelta) -> None:
        committed = (packed(merged.version), packed(merged.base), merged.to_bytes())
        answer = self._run(scripts.COMMIT_MERGED, ["owner", "records", "merged"], branch, self._claim, *committed)
        self._decide(answer, f"merged delta {label(merged.base)} -> {label(merged.version)}")

    def head(self) -> VersionRecord | None:
        with answers("a read of head"):
            version = self._client.get(self._keys["head"])
        return None if version is None else self.record(int(version))

    def record(self, version: int) -> VersionRecord | None:
        name = packed(version)
        with answers("a read of a record"):
            pipe = self._client.pipeline(transaction=True)
            pipe.hget(self._keys["records"], name)
            pipe.hget(self._keys["anchors"], name)
            pipe.hgetall(self._keys["merged"])
            blob, anchor, merged = pipe.execute()
        return None if blob is None else VersionRecord.from_bytes(blob, anchor, _ending_at(name.encode(), merged))

    def records(self) -> list[VersionRecord]:
        with answers("a read of the records"):
            pipe = self._client.pipeline(transaction=True)
            for key in ("records", "anchors", "merged"):
                pipe.hgetall(self._keys[key])
            blobs, anchors, merged = pipe.execute()
        return [
            VersionRecord.from_bytes(blobs[name], anchors.get(name), _ending_at(name, merged)) for name in sorted(blobs)
        ]

    def digest_of(self, version: int) -> int | None:
        with answers("a read of a digest"):
            digest = self._client.hget(self._keys["digests"], packed(version))
        return None if digest is None else int(digest, 16)

    def prune(
        self,
        branch: int,
        versions: Collection[int],
        anchors: Collection[int],
        merged: Collection[tuple[int, int]] = (),
    ) -> None:
        keys = ["owner", "head", "records", "anchors", "nonces", "merged"]
        gone = [packed(version) for version in versions]
        gone += [f"{packed(version)}-{packed(base)}" for base, version in merged]
        gone += [packed(version) for version in anchors]
        answer = self._run(scripts.PRUNE, keys, branch, self._claim, len(versions), len(merged), *gone)
        self._decide(answer, "prune")

    def put_document(self, name: str, blob: bytes) -> None:
        with answers(f"document {name}"):
            self._client.hsetnx(self._keys["documents"], name, blob)

    def document(self, name: str) -> bytes | None:
        with answers(f"document {name}"):
            blob: bytes | None = self._client.hget(self._keys["documents"], name)
        return blob

    def put_endpoint(self, branch: int, rank: int, url: str) -> None:
        answer = self._run(scripts.PUT_ENDPOINT, ["owner", "endpoints"], branch, rank, url)
        self._decide(answer, f"endpoint of rank {rank}")

    def endpoints(self) -> dict[int, str]:
        with answers("a read of the endpoints"):
            held = self._client.hgetall(self._keys["endpoints"])
        return {int(rank): blob.decode().partition(" ")[2] for rank, blob in held.items()}

    def put_wish(self, wish: Wish) -> None:
        self._run(scripts.WISH, ["wish", "hints"], wish)

    def wish(self) -> Wish:
        with answers("a read of the wish"):
            return "sleep" if self._client.get(self._keys["wish"]) == b"sleep" else "serve"

    def put_pin(self, branch: int, pin: Pin | None) -> None:
        blob = b"" if pin is None else msgpack.packb([pin.server, pin.version])
        answer = self._run(scripts.PUT_PIN, ["owner", "pin", "hints"], branch, self._claim, blob)
        self._decide(answer, f"pin of branch {branch}")

    def pin(self) -> Pin | None:
        with answers("a read of the pin"):
            owner, held = self._client.mget(self._keys["owner"], self._keys["pin"])
        branch, _, blob = (held or b"").partition(b" ")
        return Pin(*msgpack.unpackb(blob)) if blob and branch == (owner or b"").partition(b" ")[0] else None

    def watch(self, topics: Collection[str] = TOPICS) -> RedisWatch:
        return RedisWatch(self._client, self._keys["hints"], topics)

    def wait(self, deadline_s: float) -> bool:
        with self._lock:
            if self._shared is None:
                self._shared = self.watch()
        return self._shared.wait(deadline_s)

    def close(self) -> None:
        self._client.close()

    def _owner(self) -> tuple[int, str]:
        with answers("a read of the owner"):
            held: bytes = self._client.get(self._keys["owner"]) or b"0"
        branch, _, nonce = held.decode().partition(" ")
        return int(branch), nonce

    def _decide(self, answer: Sequence[bytes], what: str) -> None:
        if answer[0] == b"fenced":
            raise fenced(what, int(answer[1]))
        if answer[0] == b"base":
            found = label(int(answer[1])) if answer[1] else "none"
            raise BaseMismatch(
                f"{what}: head is {found}. The publisher reads the log again and takes that as its base."
            )


def _ending_at(version: bytes, merged: Mapping[bytes, bytes]) -> list[bytes]:
    return [blob for name, blob in merged.items() if name.startswith(version)]
