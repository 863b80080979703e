"""The version log in a folder: every transition under one file lock, every file replaced by rename, head last.

For weightsync used alone, on one machine or on shared storage whose file locks work. Hints are files whose change is
looked at, at most five times a second, while somebody waits.
"""

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from time import monotonic
from urllib.parse import unquote

import msgpack

from weightsync.acks import Ack, Server, State
from weightsync.errors import BaseMismatch, Fenced, StaleIncarnation
from weightsync.log.base import TOPICS, Need, Wish
from weightsync.log.files import Files, safe_name
from weightsync.log.records import Upload, VersionRecord, pack_anchor
from weightsync.versions import ORIGIN, label

_HINT_RECHECK_S = (0.01, 0.2)


class DirectoryWatch:
    """A place among the hints: what the topics' files were when last looked at."""

    def __init__(self, folder: Path, topics: Collection[str], closed: threading.Event) -> None:
        self._files = [folder / topic for topic in topics]
        self._closed = closed
        self._seen = self._look()

    def wait(self, deadline_s: float) -> bool:
        """Look until a file changed, or the deadline; closing the log ends it."""
        end = monotonic() + deadline_s
        pause_s, longest_s = _HINT_RECHECK_S
        while True:
            found = self._look()
            if found != self._seen:
                self._seen = found
                return True
            left = end - monotonic()
            if left <= 0 or self._closed.wait(min(pause_s, left)):
                return False
            pause_s = min(2 * pause_s, longest_s)

    def _look(self) -> list[tuple[int, int]]:
        found = []
        for file in self._files:
            try:
                stat = file.stat()
            except FileNotFoundError:
                found.append((0, 0))
            else:
                # The inode too: two renames within one tick of the clock differ in it.
                found.append((stat.st_ino, stat.st_mtime_ns))
        return found


class DirectoryLog:
    """VersionLog over a folder. Thread-safe and safe between processes."""

    def __init__(self, directory: Path, run: str) -> None:
        self.run = run
        self._root = directory / safe_name(run) / "log"
        self._closed = threading.Event()
        folders = ("records", "anchors", "digests", "documents", "endpoints", "servers", "seen", "needs", "hints")
        self._files = Files(self._root, folders, self._closed)
        self._shared = self.watch()

    def claim(self, branch: int) -> None:
        with self._files.locked():
            self._check_owner(branch, f"claim of branch {branch}")
            self._files.write("owner", str(branch).encode())
        self._hint("head")

    def owner(self) -> int:
        return int(self._files.read("owner") or 0)

    def flip(self, base: int | None, record: VersionRecord) -> None:
        what, name = f"flip of {label(base)} -> {label(record.version)}", f"{record.version:020d}"
        with self._files.locked():
            head = self._head()
            held = self.record(record.version) if head is not None and record.version <= head else None
            if held is not None and held.nonce == record.nonce:
                return
            if record.version != ORIGIN:
                self._check_owner(record.branch, what)
            if head != base or (head is not None and record.version <= head):
                raise BaseMismatch(f"{what}: head is {label(head)}. The publisher reads the log again and takes that.")
            if self.owner() < record.branch:
                self._files.write("owner", str(record.branch).encode())
            self._files.write(f"records/{name}", record.to_bytes())
            (self._root / "anchors" / name).unlink(missing_ok=True)
            if record.anchor is not None:
                self._files.write(f"anchors/{name}", pack_anchor(record.anchor))
            self._files.write(f"digests/{name}", f"{record.digest:016x}".encode())
            # Head goes last: a crash above this line leaves a record that nobody names.
            self._files.write("head", name.encode())
        self._hint("head")

    def commit_anchor(self, branch: int, anchor: Upload) -> None:
        with self._files.locked():
            self._check_owner(branch, f"anchor of {label(anchor.version)}")
            if self.record(anchor.version) is None:
                raise BaseMismatch(f"anchor of {label(anchor.version)}: that version has no record (any more).")
            self._files.write(f"anchors/{anchor.version:020d}", pack_anchor(anchor))
        self._hint("anchor")

    def head(self) -> VersionRecord | None:
        version = self._head()
        return None if version is None else self.record(version)

    def record(self, version: int) -> VersionRecord | None:
        head = self._head()
        blob = self._files.read(f"records/{version:020d}") if head is not None and version <= head else None
        return None if blob is None else VersionRecord.from_bytes(blob, self._files.read(f"anchors/{version:020d}"))

    def records(self) -> list[VersionRecord]:
        found = (self.record(int(file.name)) for file in sorted((self._root / "records").glob("[0-9]*")))
        return [record for record in found if record is not None]

    def digest_of(self, version: int) -> int | None:
        head = self._head()
        digest = self._files.read(f"digests/{version:020d}") if head is not None and version <= head else None
        return None if digest is None else int(digest, 16)

    def prune(self, branch: int, versions: Collection[int], anchors: Collection[int]) -> None:
        with self._files.locked():
            self._check_owner(branch, "prune")
            head = self._head()
            for folder, gone in (("anchors", {*versions, *anchors}), ("records", {*versions})):
                for version in gone - {head}:
                    (self._root / folder / f"{version:020d}").unlink(missing_ok=True)

    def put_document(self, name: str, blob: bytes) -> None:
        if self.document(name) is None:
            self._files.write(f"documents/{safe_name(name)}", blob)

    def document(self, name: str) -> bytes | None:
        return self._files.read(f"documents/{safe_name(name)}")

    def put_endpoint(self, branch: int, rank: int, url: str) -> None:
        with self._files.locked():
            held = self._endpoints()
            self._check_owner(branch, f"endpoint of rank {rank}", max((said for said, _ in held.values()), default=0))
            for other in (other for other, (said, _) in held.items() if said < branch):
                (self._root / "endpoints" / str(other)).unlink(missing_ok=True)
            self._files.write(f"endpoints/{rank}", msgpack.packb([branch, url]))

    def endpoints(self) -> dict[int, str]:
        return {rank: url for rank, (_, url) in self._endpoints().items()}

    def register(self, server: str, incarnation: str, url: str, lease_s: float) -> None:
        with self._files.locked():
            self._put_server(server, incarnation, url, lease_s, "starting", None)
        self._hint("server")

    def put_ack(self, server: str, incarnation: str, version: int, digest: int, state: State) -> None:
        self._say(server, incarnation, state, (version, digest))

    def put_state(self, server: str, incarnation: str, state: State) -> None:
        self._say(server, incarnation, state, None)

    def renew(self, server: str, incarnation: str) -> None:
        with self._files.locked():
            self._current(server, incarnation)
            self._files.touch(f"seen/{safe_name(server)}")

    def leave(self, server: str, incarnation: str) -> None:
        with self._files.locked():
            blob = self._files.read(f"servers/{safe_name(server)}")
            if blob is None or msgpack.unpackb(blob)[0] != incarnation:
                return
            for folder in ("servers", "seen", "needs"):
                (self._root / folder / safe_name(server)).unlink(missing_ok=True)
        self._hint("server")

    def servers(self) -> Mapping[str, Server]:
        return {name: server for name, (server, _) in self._fleet().items()}

    def acks(self) -> dict[str, Ack]:
        return {
            name: Ack(*held, server.incarnation, server.state, server.url, server.age_s)
            for name, (server, held) in self._fleet().items()
            if held is not None
        }

    def need(self, server: str, reason: str, failed: str = "") -> None:
        name, blob = f"needs/{safe_name(server)}", msgpack.packb([reason, failed])
        if self._files.read(name) != blob:
            self._files.write(name, blob)
            self._hint("need")

    def needs(self) -> list[Need]:
        now, found = self._now(), []
        for file in sorted((self._root / "needs").glob("=*")):
            if (blob := self._files.read(f"needs/{file.name}")) is not None:
                reason, failed = msgpack.unpackb(blob)
                found.append(Need(unquote(file.name[1:]), reason, failed, self._files.age(f"needs/{file.name}", now)))
        return found

    def answered(self, servers: Collection[str]) -> None:
        for server in servers:
            (self._root / "needs" / safe_name(server)).unlink(missing_ok=True)

    def put_wish(self, wish: Wish) -> None:
        if self.wish() != wish:
            self._files.write("wish", wish.encode())
            self._hint("wish")

    def wish(self) -> Wish:
        return "sleep" if self._files.read("wish") == b"sleep" else "serve"

    def watch(self, topics: Collection[str] = TOPICS) -> DirectoryWatch:
        return DirectoryWatch(self._root / "hints", topics, self._closed)

    def wait(self, deadline_s: float) -> bool:
        return self._shared.wait(deadline_s)

    def close(self) -> None:
        self._closed.set()

    def _head(self) -> int | None:
        head = self._files.read("head")
        return None if head is None else int(head)

    def _endpoints(self) -> dict[int, tuple[int, str]]:
        files = (self._root / "endpoints").glob("[0-9]*")
        held = {int(file.name): self._files.read(f"endpoints/{file.name}") for file in files}
        return {rank: tuple(msgpack.unpackb(blob)) for rank, blob in sorted(held.items()) if blob is not None}

    def _check_owner(self, branch: int, what: str, newest: int = 0) -> None:
        if (owner := max(self.owner(), newest)) > branch:
            raise Fenced(
                f"{what}: branch {owner} owns the log. A newer trainer took over; this one must stop publishing."
            )

    def _current(self, server: str, incarnation: str) -> tuple[str, float, tuple[int, int] | None]:
        blob = self._files.read(f"servers/{safe_name(server)}")
        current, url, lease_s, _, held = msgpack.unpackb(blob) if blob is not None else ("nobody", "", 0.0, "", None)
        if current != incarnation:
            raise StaleIncarnation(
                f"server {server} is registered as {current}, this host speaks for {incarnation}: a newer start took "
                "over. This host must stop."
            )
        return url, lease_s, None if held is None else (held[0], held[1])

    def _say(self, server: str, incarnation: str, state: State, held: tuple[int, int] | None) -> None:
        with self._files.locked():
            url, lease_s, before = self._current(server, incarnation)
            self._put_server(server, incarnation, url, lease_s, state, held or before)
        self._hint("server")

    def _put_server(
        self, server: str, incarnation: str, url: str, lease_s: float, state: State, held: tuple[int, int] | None
    ) -> None:
        name = safe_name(server)
        self._files.write(f"servers/{name}", msgpack.packb([incarnation, url, lease_s, state, held]))
        self._files.touch(f"seen/{name}")

    def _fleet(self) -> dict[str, tuple[Server, tuple[int, int] | None]]:
        now, found = self._now(), {}
        for file in sorted((self._root / "servers").glob("=*")):
            if (blob := self._files.read(f"servers/{file.name}")) is None:
                continue
            incarnation, url, lease_s, state, held = msgpack.unpackb(blob)
            server = Server(incarnation, url, state, self._files.age(f"seen/{file.name}", now), lease_s)
            if server.alive:
                found[unquote(file.name[1:])] = (server, None if held is None else (held[0], held[1]))
        return found

    def _now(self) -> float:
        # The storage's clock, not this machine's: ages compare times that it gave.
        return self._files.touch("clock")

    def _hint(self, topic: str) -> None:
        self._files.write(f"hints/{topic}", b"")
