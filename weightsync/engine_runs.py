"""Boxes in one run of the CPU's memory: their changes are added as they are read, in one pass, and taken back if the
result is not the published one.

Differences add, so subtracting them is exact. Without torch: a call of it costs more than most runs take.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weightsync import adding, diff, diff_numpy
from weightsync.address_map import AddressMap, Box
from weightsync.digest import MASK, total
from weightsync.engine_words import decode_on_cpu, unsigned
from weightsync.errors import CorruptDelta
from weightsync.layout import Bucket, Index, TensorSpec, Words, address_step
from weightsync.planes import Planes
from weightsync.ticket import Staged


class Added(NamedTuple):
    """Changes `low` to `high` of a bucket, which went into a box."""

    box: Box
    low: int
    high: int
    shift: int
    start: int
    gain: int


class Runs:
    """The boxes of one engine rank that lie in one run and share no word with another."""

    def __init__(self, boxes: AddressMap, specs: dict[str, TensorSpec]) -> None:
        self._map, self._specs = boxes, specs
        self._words = {box: unsigned(box.words) for box in apart(boxes) if box.words.device.type == "cpu"}
        self._added: list[tuple[Planes, list[Added]]] = []
        self._inside = False

    def __contains__(self, box: Box) -> bool:
        return box in self._words

    def add(self, staged: Sequence[Staged]) -> list[Added]:
        """Add what sparse buckets change in these boxes; then `keep` it or `take_back`.

        Raises:
            CorruptDelta: a change does not fit the map; `take_back` what was added before.
        """
        self._added, self._inside = [], False
        for bucket, planes, _ in staged:
            if planes is not None:
                self._add_bucket(bucket, planes)
        return [one for _, found in self._added for one in found]

    def keep(self) -> None:
        """What was added stays."""
        self._added.clear()

    def take_back(self) -> None:
        """Make the words what they were before `add`.

        Raises:
            RuntimeError: `add` was interrupted within a run, or other words were subtracted from than were added to.
        """
        if self._inside:
            raise RuntimeError("adding was interrupted within a run")
        while self._added:
            planes, found = self._added[-1]
            positions, differences = decode_on_cpu(planes)
            np.negative(differences, out=differences)  # modulo 2^bits
            for one in found:
                some = slice(one.low, one.high)
                gain = _add(self._words[one.box], positions[some], differences[some], one.shift, one.start)
                if total((gain, one.gain)):
                    raise RuntimeError(f"words of {one.box.tensor} changed between adding and taking back")
            self._added.pop()

    def _add_bucket(self, bucket: Bucket, planes: Planes) -> None:
        mine = [
            [box for box in self._map.meeting(segment.tensor, segment.start, segment.end) if box in self]
            for segment in bucket.segments
        ]
        if not any(mine):
            return
        positions, differences = decode_on_cpu(planes)
        cuts = np.searchsorted(positions, np.cumsum([segment.words for segment in bucket.segments])).tolist()
        found: list[Added] = []
        self._added.append((planes, found))
        at = low = 0
        for segment, boxes, high in zip(bucket.segments, mine, cuts, strict=True):
            for box in boxes if high > low else ():
                self._add(found, box, positions, differences, low, high, segment.start - at)
            at, low = at + segment.words, high

    def _add(
        self, found: list[Added], box: Box, positions: Index, differences: Words, low: int, high: int, offset: int
    ) -> None:
        """`offset` makes positions of the bucket those of the tensor; low to high are in this segment."""
        spec, words = self._specs[box.tensor], self._words[box]
        first, last = np.searchsorted(positions[low:high], [end - offset for end in box.span]).tolist()
        low, high = low + first, low + last
        if high == low:
            return
        shift = offset + box.dst - box.src
        if not (positions[low] + shift >= 0 and positions[high - 1] + shift < words.size):  # they rise
            raise outside(box)
        start = spec.offset + offset * address_step(spec.width)
        self._inside = True
        gain = _add(words, positions[low:high], differences[low:high], shift, start)
        found.append(Added(box, low, high, shift, start, gain))
        self._inside = False


def _add(words: Words, positions: Index, differences: Words, shift: int, start: int) -> int:
    """words[positions + shift] += differences; the digest's gain, if the address of position 0 is `start`."""
    if not diff.HAVE_NUMBA:
        return diff_numpy.add(words, positions, differences, shift, start)
    return int(adding.add(words, positions, differences, shift, start, address_step(words.dtype.itemsize))) & MASK


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
