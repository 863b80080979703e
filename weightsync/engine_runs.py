"""Boxes in one run of the CPU's memory: their changes are added as they are read, in one pass, and taken back if the
result is not the published one.

Differences add, so subtracting them is exact. Without torch: a call of it costs more than most runs take.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weightsync import diff, diff_numpy, foresight
from weightsync.adders import Adders
from weightsync.address_map import AddressMap, Box
from weightsync.digest import MASK, total
from weightsync.engine_words import decode_on_cpu, unsigned
from weightsync.errors import CorruptDelta
from weightsync.layout import Bucket, Index, TensorSpec, Words, address_step
from weightsync.planes import Planes, Room
from weightsync.ticket import Staged


class Piece(NamedTuple):
    """What of a bucket lies in one box: its positions from `low` to `high`.

    words: the box's storage; word `position + shift` is changed.
    start: address of position 0.
    """

    box: Box
    words: Words
    low: int
    high: int
    shift: int
    start: int


class Added(NamedTuple):
    """Changes `first` to `last` of a bucket, which went into a box."""

    piece: Piece
    first: int
    last: int
    gain: int


class Foreseen(NamedTuple):
    """What `Runs.add` will do, from `Runs.foresee`; valid until that is called again.

    added: by sparse bucket, in the ticket's order.
    runs: of all of them.
    adders: of these runs.
    """

    added: list[tuple[Planes, list[Added]]]
    runs: list[foresight.Run]
    adders: Adders


class Route(NamedTuple):
    """Where a bucket goes: its pieces, their ends [2 p], and whether they are all that the engine holds of it."""

    bucket: Bucket
    pieces: list[Piece]
    ends: Index
    whole: bool


class Runs:
    """The boxes of one engine rank that lie in one run and share no word with another."""

    def __init__(self, boxes: AddressMap, specs: dict[str, TensorSpec]) -> None:
        self._map, self._specs = boxes, specs
        self._words = {box: unsigned(box.words) for box in apart(boxes) if box.words.device.type == "cpu"}
        self._routes: dict[int, Route] = {}
        self._added: list[tuple[Planes, list[Added]]] = []
        self._foreseen: list[foresight.Run] | None = None  # of what was added
        self._inside = False
        self._room, self._ahead = Room(), Room()
        self._pool = foresight.Pool()

    def __contains__(self, box: Box) -> bool:
        return box in self._words

    def take_whole(self, bucket: Bucket) -> bool:
        """Are all words that the engine holds of a bucket in these boxes?"""
        return self._route(bucket).whole

    def foresee(self, staged: Sequence[Staged], most_bytes: int) -> Foreseen | None:
        """What `add` will do with these buckets, while nothing writes; None if that takes more than `most_bytes`.

        Raises:
            CorruptDelta: a box does not fit its storage.
        """
        routes = [(self._route(bucket), planes) for bucket, planes, _ in staged if planes is not None]
        routes = [(route, planes) for route, planes in routes if route.pieces]
        needed = sum(foresight.bytes_for(p.num_changed, r.bucket.width, len(r.pieces)) for r, p in routes)
        if needed > most_bytes:
            return None
        self._pool.begin(needed)
        found: list[tuple[Planes, list[Added]]] = []
        runs: list[foresight.Run] = []
        for route, planes in routes:
            positions, differences = decode_on_cpu(planes, self._ahead)
            added: list[Added] = []
            found.append((planes, added))
            for piece, first, last in _cut(route, positions):
                places, change = positions[first:last], differences[first:last]
                run = foresight.foresee(piece.words, places, change, piece.shift, piece.start, self._pool)
                runs.append(run)
                added.append(Added(piece, first, last, run.gain))
        return Foreseen(found, runs, Adders(runs))

    def add(self, staged: Sequence[Staged], foreseen: Foreseen | None = None) -> list[Added]:
        """Add what sparse buckets change in these boxes; then `keep` it or `take_back`.

        Args:
            foreseen: of the same buckets. If it did not come true they are gone through again.
        Raises:
            CorruptDelta: a box does not fit its storage; `take_back` what was added before.
        """
        self._added, self._foreseen, self._inside = [], None, foreseen is not None
        if foreseen is not None and foreseen.adders.add():
            self._added, self._foreseen = list(foreseen.added), foreseen.runs
            staged = ()
        self._inside = False
        for bucket, planes, _ in staged:
            if planes is not None and (route := self._route(bucket)).pieces:
                self._add(route, planes)
        return [one for _, found in self._added for one in found]

    def places(self) -> Iterator[tuple[Box, Index | npt.NDArray[np.int32]]]:
        """Where in boxes' storages `add` changed words, until `keep`; valid until the next `foresee`."""
        added = [one for _, found in self._added for one in found]
        if self._foreseen is not None:
            yield from ((one.piece.box, run.places) for one, run in zip(added, self._foreseen, strict=True))
            return
        for planes, found in self._added:
            positions, _ = decode_on_cpu(planes, self._room)
            yield from ((piece.box, positions[first:last] + piece.shift) for piece, first, last, _ in found)

    def keep(self) -> None:
        """What was added stays."""
        self._added.clear()
        self._foreseen, self._room = None, Room()

    def take_back(self) -> None:
        """Make the words what they were before `add`.

        Raises:
            RuntimeError: `add` was interrupted within a run, or other words were subtracted from than were added to.
        """
        if self._inside:
            raise RuntimeError("adding was interrupted within a run")
        while self._added:
            planes, found = self._added[-1]
            positions, differences = decode_on_cpu(planes, self._room)
            np.negative(differences, out=differences)  # modulo 2^bits
            for piece, first, last, gain in found:
                if total((gain, _add(piece, positions[first:last], differences[first:last]))):
                    raise RuntimeError(f"words of {piece.box.tensor} changed between adding and taking back")
            self._added.pop()
        self.keep()

    def _add(self, route: Route, planes: Planes) -> None:
        positions, differences = decode_on_cpu(planes, self._room)
        found: list[Added] = []
        self._added.append((planes, found))
        for piece, first, last in _cut(route, positions):
            self._inside = True
            gain = _add(piece, positions[first:last], differences[first:last])
            found.append(Added(piece, first, last, gain))
            self._inside = False

    def _route(self, bucket: Bucket) -> Route:
        """Of a version's plan, which most versions share with the one before: its buckets are the same objects."""
        route = self._routes.get(bucket.id)
        if route is None or route.bucket is not bucket:
            route = self._routes[bucket.id] = self._routed(bucket)
        return route

    def _routed(self, bucket: Bucket) -> Route:
        pieces, whole, at = [], True, 0
        for segment in bucket.segments:
            spec, offset = self._specs[segment.tensor], segment.start - at
            for box in self._map.meeting(segment.tensor, segment.start, segment.end):
                whole = whole and box in self
                if box in self:
                    low, high = max(segment.start, box.span[0]) - offset, min(segment.end, box.span[1]) - offset
                    start, shift = spec.offset + offset * address_step(spec.width), offset + box.dst - box.src
                    piece = Piece(box, self._words[box], low, high, shift, start)
                    if low + shift < 0 or high + shift > piece.words.size:
                        raise outside(box)
                    pieces.append(piece)
            at += segment.words
        ends = np.array([end for piece in pieces for end in (piece.low, piece.high)], np.int64)
        return Route(bucket, pieces, ends, whole)


def _cut(route: Route, positions: Index) -> Iterator[tuple[Piece, int, int]]:
    """Pieces with changes, and which of the bucket's changes those are."""
    cuts = positions.searchsorted(route.ends).tolist()
    for piece, first, last in zip(route.pieces, cuts[::2], cuts[1::2], strict=True):
        if first < last:
            yield piece, first, last


def _add(piece: Piece, positions: Index, differences: Words) -> int:
    """Add differences to a piece's words, rising positions of its bucket; the digest's gain."""
    words, shift, start = piece.words, piece.shift, piece.start
    if not diff.HAVE_NUMBA:
        return diff_numpy.add(words, positions, differences, shift, start)
    return int(diff.add(words, positions, differences, shift, start, address_step(words.dtype.itemsize))) & MASK


def apart(boxes: AddressMap) -> list[Box]:
    """Boxes in one run of which no word belongs to another box: only there adding is the same as writing."""
    places: dict[int, list[tuple[int, int, Box]]] = {}
    for box in boxes.all():
        width = box.words.element_size()
        end = box.dst + 1 + sum((n - 1) * dst for n, _, dst in box.dims)
        places.setdefault(box.words.data_ptr(), []).append((box.dst * width, end * width, box))
    found = []
    for runs in places.values():
        runs.sort(key=lambda run: run[:2])
        reached = 0
        for i, (start, end, box) in enumerate(runs):
            after = runs[i + 1][0] if i + 1 < len(runs) else end
            if box.contiguous and start >= reached and end <= after:
                found.append(box)
            reached = max(reached, end)
    return found


def outside(box: Box) -> CorruptDelta:
    """What says that a change does not fit the map."""
    return CorruptDelta(f"{box.tensor}: a change lies outside its storage of {box.words.numel()} words.")
