"""Parts of one process in its memory, limited in bytes: whole uploads leave, the oldest that nobody needs first."""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import accumulate

from weightsync.errors import CorruptDelta, TransportFull
from weightsync.transport.base import split_key, upload_version

logger = logging.getLogger(__name__)


class PartMemory:
    """Thread-safe. A part is kept as the pieces that it was put in, and copied only if its owner could change it."""

    def __init__(self, keep_bytes: int, needed: Callable[[], Collection[str]]) -> None:
        """
        Args:
            keep_bytes: of all parts together.
            needed: prefixes of the uploads that make head; asked when something must leave, so it may do I/O.
        """
        self._keep_bytes, self._needed = keep_bytes, needed
        self._uploads: dict[str, dict[str, _Part]] = {}
        self._lock = threading.Lock()
        self.num_bytes = 0

    def put(self, key: str, pieces: Sequence[memoryview]) -> None:
        """Keep a part; other uploads leave if there is no room.

        Raises:
            TransportFull: this upload alone does not fit.
            LogLost: which uploads may leave is not known.
        """
        upload, name = _place_of(key)
        part = _Part(pieces)
        needed: Collection[str] | None = None
        while True:
            with self._lock:
                self._check_fits(upload, name, part)
                if needed is not None:
                    self._make_room(upload, name, part, needed)
                if self.num_bytes + part.num_bytes - self._size(upload, name) <= self._keep_bytes:
                    self.num_bytes += part.num_bytes - self._size(upload, name)
                    self._uploads.setdefault(upload, {})[name] = part
                    return
            needed = self._needed()  # without the lock: readers are served meanwhile

    def size(self, key: str) -> int | None:
        """Bytes of a part, None if it is not here."""
        upload, name = _place_of(key)
        with self._lock:
            part = self._uploads.get(upload, {}).get(name)
            return None if part is None else part.num_bytes

    def view(self, key: str, at: int, most: int) -> memoryview | None:
        """At most `most` bytes of a part from `at` on, in place; None if the part is not here (any more)."""
        upload, name = _place_of(key)
        with self._lock:
            part = self._uploads.get(upload, {}).get(name)
        return None if part is None else part.view(at, most)

    def copy_into(self, key: str, target: memoryview) -> bool:
        """Fill `target` with a part; False if it is not here. Raises CorruptDelta: it has another size."""
        upload, name = _place_of(key)
        with self._lock:
            part = self._uploads.get(upload, {}).get(name)
        if part is None:
            return False
        if part.num_bytes != len(target):
            raise CorruptDelta(f"part {key} has {part.num_bytes} bytes, the record says {len(target)}.")
        at = 0
        for piece in part.pieces:
            target[at : at + len(piece)] = piece
            at += len(piece)
        return True

    def delete(self, prefix: str) -> int:
        """Remove every part whose key starts with `prefix`; returns how many."""
        count = 0
        with self._lock:
            for upload in [u for u in self._uploads if u.startswith(prefix) or prefix.startswith(u)]:
                parts = self._uploads[upload]
                for name in [name for name in parts if f"{upload}{name}".startswith(prefix)]:
                    self.num_bytes -= parts.pop(name).num_bytes
                    count += 1
                if not parts:
                    del self._uploads[upload]
        return count

    def uploads(self, prefix: str) -> list[str]:
        """Prefixes of all uploads that start with `prefix`."""
        with self._lock:
            return sorted(upload for upload in self._uploads if upload.startswith(prefix))

    def _size(self, upload: str, name: str) -> int:
        part = self._uploads.get(upload, {}).get(name)
        return 0 if part is None else part.num_bytes

    def _check_fits(self, upload: str, name: str, part: "_Part") -> None:
        own = sum(other.num_bytes for other in self._uploads.get(upload, {}).values()) - self._size(upload, name)
        if own + part.num_bytes > self._keep_bytes:
            raise TransportFull(
                f"{upload}{name} does not fit: {own} bytes of its upload are here, it has {part.num_bytes}, and "
                f"weightsync.tcp.keep_bytes is {self._keep_bytes}. A rank must be able to keep its whole shard, two "
                "bytes a weight in bfloat16, and the changes since: raise it, or train on more ranks."
            )

    def _make_room(self, upload: str, name: str, part: "_Part", needed: Collection[str]) -> None:
        order = {other: (other in needed, upload_version(other), i) for i, other in enumerate(self._uploads)}
        excess = self.num_bytes + part.num_bytes - self._size(upload, name) - self._keep_bytes
        for other in sorted(order, key=order.__getitem__):
            if excess <= 0:
                return
            if other == upload:
                continue
            gone = sum(old.num_bytes for old in self._uploads.pop(other).values())
            excess -= gone
            self.num_bytes -= gone
            if other in needed:
                logger.warning(
                    "weightsync: %s leaves the memory though servers may need it; they will ask for an anchor. Raise "
                    "weightsync.tcp.keep_bytes, now %d.",
                    *(other, self._keep_bytes),
                )


class _Part:
    """The pieces of a part, end to end."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = [_kept(piece) for piece in pieces if piece.nbytes]
        self._ends = list(accumulate(map(len, self.pieces)))
        self.num_bytes = self._ends[-1] if self._ends else 0

    def view(self, at: int, most: int) -> memoryview:
        i = bisect_right(self._ends, at)
        if i == len(self.pieces):
            return memoryview(b"")
        start = at - (self._ends[i - 1] if i else 0)
        return self.pieces[i][start : start + most]


# A part is looked up again for each piece of it that is sent.
_place_of = lru_cache(maxsize=1024)(split_key)


def _kept(piece: memoryview) -> memoryview:
    view = memoryview(piece).cast("B")
    # Bytes cannot change, and a view of all of them keeps nothing else alive.
    if isinstance(view.obj, bytes) and len(view.obj) == len(view):
        return view
    return memoryview(bytes(view))
