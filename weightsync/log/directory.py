"""The version log in a folder: every transition under one file lock, every file replaced by rename, head last.

For weightsync used alone, on one machine or on shared storage whose file locks work. Hints are files whose change is
looked at, at most five times a second, while somebody waits.
"""

import secrets
import threading
from collections.abc import Collection
from pathlib import Path

import msgpack

from weightsync.errors import BaseMismatch
from weightsync.log.base import TOPICS, Pin, Wish, fenced
from weightsync.log.directory_fleet import FOLDERS, DirectoryFleet
from weightsync.log.directory_watch import DirectoryWatch
from weightsync.log.files import Files, safe_name
from weightsync.log.records import MergedDelta, Upload, VersionRecord, pack_anchor
from weightsync.versions import ORIGIN, label

_VERSIONS = ("records", "anchors", "merged", "digests")
_NO_PIN = msgpack.packb([-1])
_REST = ("documents", "endpoints", "hints")


class DirectoryLog(DirectoryFleet):
    """VersionLog over a folder. Thread-safe and safe between processes."""

    def __init__(self, directory: Path, run: str) -> None:
        self.run = run
        self._closed = threading.Event()
        root = directory / safe_name(run) / "log"
        super().__init__(Files(root, (*_VERSIONS, *_REST, *FOLDERS), self._closed))
        self._claim = ""
        self._shared = self.watch()

    def claim(self, branch: int) -> None:
        nonce = self._claim or secrets.token_hex(8)
        with self._files.locked():
            if (owner := self.owner()) > branch:
                raise fenced(f"claim of branch {branch}", owner)
            self._files.write("owner", f"{branch} {nonce}".encode())
        self._claim = nonce
        self._hint("head")

    def confirm(self, branch: int) -> None:
        self._check_owner(branch, f"branch {branch}")

    def owner(self) -> int:
        return self._owner()[0]

    def flip(self, base: int | None, record: VersionRecord) -> None:
        what, name = f"flip of {label(base)} -> {label(record.version)}", _name(record.version)
        with self._files.locked():
            head = self._head()
            held = self.record(record.version) if head is not None and record.version <= head else None
            if held is not None and held.nonce == record.nonce:
                return
            if record.version != ORIGIN:
                self._check_owner(record.branch, what)
            if head != base or (head is not None and record.version <= head):
                raise BaseMismatch(f"{what}: head is {label(head)}. The publisher reads the log again and takes that.")
            self._forget_above(head)
            if self.owner() < record.branch:
                self._files.write("owner", f"{record.branch} {self._claim}".encode())
            self._files.write(f"records/{name}", record.to_bytes())
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
            self._files.write(f"anchors/{_name(anchor.version)}", pack_anchor(anchor))
        self._hint("anchor")

    def commit_merged(self, branch: int, merged: MergedDelta) -> None:
        what = f"merged delta {label(merged.base)} -> {label(merged.version)}"
        with self._files.locked():
            self._check_owner(branch, what)
            if self.record(merged.base) is None or self.record(merged.version) is None:
                raise BaseMismatch(f"{what}: one of the two versions has no record (any more).")
            self._files.write(f"merged/{_name(merged.version)}-{_name(merged.base)}", merged.to_bytes())

    def head(self) -> VersionRecord | None:
        version = self._head()
        return None if version is None else self.record(version)

    def record(self, version: int) -> VersionRecord | None:
        head, name = self._head(), _name(version)
        blob = self._files.read(f"records/{name}") if head is not None and version <= head else None
        if blob is None:
            return None
        merged = (self._files.read(f"merged/{file.name}") for file in (self._root / "merged").glob(f"{name}-[0-9]*"))
        found = [delta for delta in merged if delta is not None]
        return VersionRecord.from_bytes(blob, self._files.read(f"anchors/{name}"), found)

    def records(self) -> list[VersionRecord]:
        found = (self.record(int(file.name)) for file in sorted((self._root / "records").glob("[0-9]*")))
        return [record for record in found if record is not None]

    def digest_of(self, version: int) -> int | None:
        head = self._head()
        digest = self._files.read(f"digests/{_name(version)}") if head is not None and version <= head else None
        return None if digest is None else int(digest, 16)

    def prune(
        self,
        branch: int,
        versions: Collection[int],
        anchors: Collection[int],
        merged: Collection[tuple[int, int]] = (),
    ) -> None:
        with self._files.locked():
            self._check_owner(branch, "prune")
            gone, head = {*versions} - {self._head()}, self._head()
            for base, version in merged:
                (self._root / "merged" / f"{_name(version)}-{_name(base)}").unlink(missing_ok=True)
            for file in (self._root / "merged").glob("[0-9]*"):
                if not gone.isdisjoint(map(int, file.name.split("-"))):
                    file.unlink(missing_ok=True)
            for folder, some in (("anchors", {*gone, *anchors}), ("records", gone)):
                for version in some - {head}:
                    (self._root / folder / _name(version)).unlink(missing_ok=True)

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

    def put_wish(self, wish: Wish) -> None:
        if self.wish() != wish:
            self._files.write("wish", wish.encode())
            self._hint("wish")

    def wish(self) -> Wish:
        return "sleep" if self._files.read("wish") == b"sleep" else "serve"

    def put_pin(self, branch: int, pin: Pin | None) -> None:
        with self._files.locked():
            self._check_owner(branch, f"pin of branch {branch}")
            self._files.write("pin", b"" if pin is None else msgpack.packb([branch, pin.server, pin.version]))
        self._hint("pin")

    def pin(self) -> Pin | None:
        branch, *pin = msgpack.unpackb(self._files.read("pin") or _NO_PIN)
        return Pin(*pin) if branch == self.owner() else None

    def watch(self, topics: Collection[str] = TOPICS) -> DirectoryWatch:
        return DirectoryWatch(self._root / "hints", topics, self._closed)

    def wait(self, deadline_s: float) -> bool:
        return self._shared.wait(deadline_s)

    def close(self) -> None:
        self._closed.set()

    def _head(self) -> int | None:
        head = self._files.read("head")
        return None if head is None else int(head)

    def _owner(self) -> tuple[int, str]:
        branch, _, nonce = (self._files.read("owner") or b"0").decode().partition(" ")
        return int(branch), nonce

    def _forget_above(self, head: int | None) -> None:
        """Remove what a flip that died before head's file, or a lost head, left above it: it never was, or is undone.

        Else a later flip of a higher version would make it look like one of the line.
        """
        for folder in _VERSIONS:
            for file in (self._root / folder).glob("[0-9]*"):
                if head is None or int(file.name.partition("-")[0]) > head:
                    file.unlink(missing_ok=True)

    def _endpoints(self) -> dict[int, tuple[int, str]]:
        files = (self._root / "endpoints").glob("[0-9]*")
        held = {int(file.name): self._files.read(f"endpoints/{file.name}") for file in files}
        return {rank: tuple(msgpack.unpackb(blob)) for rank, blob in sorted(held.items()) if blob is not None}

    def _check_owner(self, branch: int, what: str, newest: int = 0) -> None:
        owner, nonce = self._owner()
        if max(owner, newest) > branch or (owner == branch and self._claim not in ("", nonce)):
            raise fenced(what, max(owner, newest))


def _name(version: int) -> str:
    return f"{version:020d}"
