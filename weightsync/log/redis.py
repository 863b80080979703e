"""The version log in Redis: records, fleet and hints as keys of one slot, each transition one script."""

import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any

import msgpack
import redis

from weightsync.acks import Ack, Server, State
from weightsync.errors import BaseMismatch, StaleIncarnation
from weightsync.log import scripts
from weightsync.log.base import TOPICS, Need, Pin, Wish, fenced
from weightsync.log.records import MergedDelta, Upload, VersionRecord, pack_anchor
from weightsync.log.redis_client import answers, connect
from weightsync.versions import label, unpack

_BLOCK_S = 5.0  # of one XREAD: below the socket's timeout, so that a quiet stream is not taken for a lost server
_NAMES = (
    *("owner", "head", "records", "anchors", "merged", "nonces", "digests", "hints", "documents", "endpoints"),
    *("servers", "incarnations", "states", "held", "seen", "needs", "wish", "pin"),
)
_FLEET = ("servers", "incarnations", "states", "held", "seen")


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


class RedisLog:
    """VersionLog over Redis. Thread-safe."""

    def __init__(self, url: str, run: str) -> None:
        self.run = run
        self._client = connect(url)
        self._keys = {name: f"{{{run}}}:w:{name}" for name in _NAMES}
        self._scripts: dict[str, Any] = {}
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
            version = self._raw().get(self._keys["head"])
        return None if version is None else self.record(int(version))

    def record(self, version: int) -> VersionRecord | None:
        name = packed(version)
        with answers("a read of a record"):
            pipe = self._raw().pipeline(transaction=True)
            pipe.hget(self._keys["records"], name)
            pipe.hget(self._keys["anchors"], name)
            pipe.hgetall(self._keys["merged"])
            blob, anchor, merged = pipe.execute()
        return None if blob is None else VersionRecord.from_bytes(blob, anchor, _ending_at(name.encode(), merged))

    def records(self) -> list[VersionRecord]:
        with answers("a read of the records"):
            pipe = self._raw().pipeline(transaction=True)
            for key in ("records", "anchors", "merged"):
                pipe.hgetall(self._keys[key])
            blobs, anchors, merged = pipe.execute()
        return [
            VersionRecord.from_bytes(blobs[name], anchors.get(name), _ending_at(name, merged)) for name in sorted(blobs)
        ]

    def digest_of(self, version: int) -> int | None:
        with answers("a read of a digest"):
            digest = self._raw().hget(self._keys["digests"], packed(version))
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
            self._raw().hsetnx(self._keys["documents"], name, blob)

    def document(self, name: str) -> bytes | None:
        with answers(f"document {name}"):
            blob: bytes | None = self._raw().hget(self._keys["documents"], name)
        return blob

    def put_endpoint(self, branch: int, rank: int, url: str) -> None:
        answer = self._run(scripts.PUT_ENDPOINT, ["owner", "endpoints"], branch, rank, url)
        self._decide(answer, f"endpoint of rank {rank}")

    def endpoints(self) -> dict[int, str]:
        with answers("a read of the endpoints"):
            held = self._raw().hgetall(self._keys["endpoints"])
        return {int(rank): blob.decode().partition(" ")[2] for rank, blob in held.items()}

    def register(self, server: str, incarnation: str, url: str, lease_s: float, *, lent: bool = False) -> None:
        registration = msgpack.packb([url, lease_s, lent])
        self._run(scripts.REGISTER, [*_FLEET, "hints"], server, incarnation, registration, "starting")

    def put_ack(self, server: str, incarnation: str, version: int, digest: int, state: State) -> None:
        self._say(server, incarnation, state, msgpack.packb([version, digest]))

    def put_state(self, server: str, incarnation: str, state: State) -> None:
        self._say(server, incarnation, state, b"")

    def renew(self, server: str, incarnation: str) -> None:
        self._say(server, incarnation, "", b"")

    def leave(self, server: str, incarnation: str) -> None:
        self._run(scripts.LEAVE, [*_FLEET, "hints", "needs"], server, incarnation)

    def servers(self) -> Mapping[str, Server]:
        return {name: server for name, (server, _) in self._fleet().items()}

    def acks(self) -> dict[str, Ack]:
        return {
            name: Ack(held[0], held[1], server.incarnation, server.state, server.url, server.age_s)
            for name, (server, held) in self._fleet().items()
            if held is not None
        }

    def need(self, server: str, reason: str, failed: str = "") -> None:
        self._run(scripts.NEED, ["needs", "hints"], server, msgpack.packb([reason, failed]))

    def needs(self) -> list[Need]:
        with answers("a read of the needs"):
            seconds, micros = self._raw().time()
            held = self._raw().hgetall(self._keys["needs"])
        now_ms = seconds * 1000 + micros // 1000
        found = []
        for server, blob in sorted(held.items()):
            reason, failed = msgpack.unpackb(blob[14:])
            found.append(Need(server.decode(), reason, failed, max(0.0, (now_ms - int(blob[:14])) / 1000)))
        return found

    def answered(self, servers: Collection[str]) -> None:
        if servers:
            with answers("answered needs"):
                self._raw().hdel(self._keys["needs"], *servers)

    def put_wish(self, wish: Wish) -> None:
        self._run(scripts.WISH, ["wish", "hints"], wish)

    def wish(self) -> Wish:
        with answers("a read of the wish"):
            return "sleep" if self._raw().get(self._keys["wish"]) == b"sleep" else "serve"

    def put_pin(self, branch: int, pin: Pin | None) -> None:
        blob = b"" if pin is None else msgpack.packb([pin.server, pin.version])
        answer = self._run(scripts.PUT_PIN, ["owner", "pin", "hints"], branch, self._claim, blob)
        self._decide(answer, f"pin of branch {branch}")

    def pin(self) -> Pin | None:
        with answers("a read of the pin"):
            owner, held = self._raw().mget(self._keys["owner"], self._keys["pin"])
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

    def _say(self, server: str, incarnation: str, state: str, held: bytes) -> None:
        answer = self._run(scripts.SAY, [*_FLEET, "hints"], server, incarnation, state, held)
        if answer[0] == b"stale":
            raise StaleIncarnation(
                f"server {server} is registered as {answer[1].decode() or 'nobody'}, this host speaks for "
                f"{incarnation}: a newer start took over. This host must stop."
            )

    def _owner(self) -> tuple[int, str]:
        with answers("a read of the owner"):
            held: bytes = self._raw().get(self._keys["owner"]) or b"0"
        branch, _, nonce = held.decode().partition(" ")
        return int(branch), nonce

    def _fleet(self) -> dict[str, tuple[Server, tuple[int, int] | None]]:
        now_ms, *hashes = self._run(scripts.SERVERS, list(_FLEET))
        servers, incarnations, states, held, seen = (_pairs(flat) for flat in hashes)
        found = {}
        for name, blob in servers.items():
            url, lease_s, *lent = msgpack.unpackb(blob)  # a host from before the last was added says two
            age_s = max(0.0, (now_ms - int(seen[name])) / 1000)
            state: Any = states[name].decode()  # our own word
            server = Server(incarnations[name].decode(), url, state, age_s, lease_s, any(lent))
            if server.alive:
                holds = msgpack.unpackb(held[name]) if name in held else None
                found[name.decode()] = (server, None if holds is None else (holds[0], holds[1]))
        return found

    def _run(self, script: str, keys: Sequence[str], *arguments: object) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._client.register_script(script)
        with answers(f"a script of the log ({', '.join(keys)})"):
            return self._scripts[script](keys=[self._keys[key] for key in keys], args=list(arguments))

    def _raw(self) -> Any:
        # Any: redis-py's types are unions of its blocking and its asyncio answers.
        return self._client

    def _decide(self, answer: Sequence[bytes], what: str) -> None:
        if answer[0] == b"fenced":
            raise fenced(what, int(answer[1]))
        if answer[0] == b"base":
            found = label(int(answer[1])) if answer[1] else "none"
            raise BaseMismatch(
                f"{what}: head is {found}. The publisher reads the log again and takes that as its base."
            )


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _ending_at(version: bytes, merged: Mapping[bytes, bytes]) -> list[bytes]:
    return [blob for name, blob in merged.items() if name.startswith(version)]
