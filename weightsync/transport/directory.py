"""Parts as files: a folder per upload, each part put in place by a rename, so that no torn part is read."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from weightsync.errors import CorruptDelta, PartMissing, TransportError, TransportFull
from weightsync.log.files import safe_name
from weightsync.transport.base import Deadline, split_key

_STEP_BYTES = 8 << 20


class DirectoryTransport:
    """Transport over a folder that both sides see. Thread-safe and safe between processes."""

    parts_outlive_writer = True
    parallel_gets = 2

    def __init__(self, directory: Path, run: str) -> None:
        self._root = directory / safe_name(run) / "parts"
        self._root.mkdir(parents=True, exist_ok=True)

    def announce(self, branch: int, rank: int) -> None:
        """Parts do not stay with their writer."""

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        deadline = Deadline(deadline_s, f"put of part {key}")
        upload, name = split_key(key)
        folder = self._root / safe_name(upload)
        temporary = folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            folder.mkdir(exist_ok=True)
            with temporary.open("wb") as stream:
                for part in parts:
                    view = memoryview(part).cast("B")
                    for at in range(0, len(view), _STEP_BYTES):
                        deadline.check()
                        stream.write(view[at : at + _STEP_BYTES])
            temporary.replace(folder / name)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, TransportError):
                raise
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise TransportFull(
                    f"{folder}: no room for part {key} ({error.strerror}). Make room, or lower weightsync.keep_deltas "
                    "and raise weightsync.anchor_interval."
                ) from error
            raise TransportError(f"{folder}: part {key} could not be written: {error}.") from error

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        deadline = Deadline(deadline_s, f"get of part {key}")
        upload, name = split_key(key)
        path = self._root / safe_name(upload) / name
        view = target.cast("B")
        try:
            with path.open("rb", buffering=0) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size != len(view):
                    raise CorruptDelta(f"part {key} has {size} bytes in {path}, the record says {len(view)}.")
                at = 0
                while at < size:
                    deadline.check()
                    read = stream.readinto(view[at : at + _STEP_BYTES])
                    if not read:
                        raise CorruptDelta(f"part {key} ends at byte {at} of {size} in {path}.")
                    at += read
        except FileNotFoundError:
            raise PartMissing(f"{path} is not there: the part was pruned, or the folder is not shared.") from None
        return size

    def delete(self, prefix: str) -> int:
        count = 0
        for upload, folder in self._folders():
            if not (upload.startswith(prefix) or prefix.startswith(upload)):
                continue
            for file in folder.iterdir():
                name = file.name
                if name.startswith(".") or f"{upload}{name}".startswith(prefix):
                    file.unlink(missing_ok=True)
                    count += not name.startswith(".")
            if upload.startswith(prefix):
                self._remove(folder)
        return count

    def uploads(self, prefix: str) -> list[str]:
        return [upload for upload, _ in self._folders() if upload.startswith(prefix)]

    def close(self) -> None:
        """Nothing is held open."""

    def _remove(self, folder: Path) -> None:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            # A part came meanwhile: the next delete finds the folder again.
            if error.errno != errno.ENOTEMPTY:
                raise TransportError(f"{folder} could not be removed: {error}.") from error

    def _folders(self) -> list[tuple[str, Path]]:
        return sorted((unquote(folder.name[1:]), folder) for folder in self._root.glob("=*"))
