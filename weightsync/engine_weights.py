"""One engine rank's weights: measure them, work out what a ticket would change, write it. Nothing else touches them.

`propose` reads the old words, so a wrong base, a wrong map or a damaged part shows in the digest. What lies in one run
of the CPU's memory it changes at once, for a second pass over scattered words takes as long as the first; `take_back`
makes these words what they were. All else is written by `write`, which then cannot meet a surprise of ours.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weightsync.address_map import AddressMap, Box, Loads
from weightsync.digest import MASK, total
from weightsync.engine_runs import Foreseen, Runs, outside
from weightsync.engine_words import decode, digest_at, digest_run, preview, to_engine
from weightsync.layout import Bucket, Index, TensorSpec, address_step
from weightsync.mirrors import MirrorChanges, Mirrors
from weightsync.planes import Planes
from weightsync.ticket import Staged

CHECKS_PER_ROUND = 64
"""Spot checks after which about every word was read again; one costs the pause that share of a read of the weights."""

_LEAST_CHECKED = 1 << 16  # words
_MOST_FORESEEN_BYTES = 1 << 28  # of memory: 22 million changes in bfloat16; of more, all is worked out in the pause
_KEPT_WORDS = 1 << 26  # up to here `write` takes what `verify` worked out; beyond, it is worked out again

Hears = Callable[[Iterable[tuple[Tensor, Index | npt.NDArray[np.int32] | Tensor | slice]]], object]


class Change(NamedTuple):
    """New words for a place in a storage: a slice of it, or indices."""

    box: Box
    where: Tensor | slice
    new: Tensor
    gain: int


@dataclass
class Proposed:
    """What a ticket does here.

    Attributes:
        gain: this rank's share of the digest's gain; of an anchor, of the new digest itself.
        replicas: 0 in the sum over ranks if all replicas of a word go through the same change.
        num_changed: words that are counted here.
        gains: of each box that changes, counted or not; of an anchor, its new digest.
        changes: what is still to be written; None: too much to keep, it is worked out again.
    """

    staged: Sequence[Staged]
    anchor: bool
    gain: int = 0
    replicas: int = 0
    num_changed: int = 0
    gains: dict[Box, int] = field(default_factory=dict)
    changes: list[Change] | None = field(default_factory=list)
    mirrors: MirrorChanges = field(default_factory=MirrorChanges)


class EngineWeights:
    """The weights of one rank behind their address map."""

    def __init__(
        self, model: Loads, tensors: Sequence[TensorSpec], boxes: AddressMap, model_dir: Path, rank: int
    ) -> None:
        """`model_dir` is what the engine loaded: the start of the mirrors that opaque tensors need.

        Raises:
            CorruptDelta: a tensor has neither an address nor words in `model_dir`.
        """
        self._model, self._map, self._first = model, boxes, rank == 0
        self._specs = {spec.name: spec for spec in tensors}
        self._device = next(iter(model.named_parameters()))[1].device
        self._on_cpu = self._device.type == "cpu"
        self._runs = Runs(boxes, self._specs)
        self._held: dict[Box, int] = {}  # digest of each box as it was last measured, and what was added since
        self._credit, self._next = 0, 0
        self._mirrors = Mirrors(boxes.opaque, self._specs, model_dir)

    def measure(self) -> tuple[int, int]:
        """(this rank's share of the digest, the replicas' term), from every word."""
        self._held = {box: self._measured(box) for box in self._map.all()}
        counted, replicas = self._share(self._held)
        return total((counted, self._mirrors.digest() if self._first else 0)), replicas

    def spot_check(self) -> str | None:
        """Read a share of the words again, others on each call; the tensor in which one changed behind our back."""
        boxes = list(self._held)
        self._credit += max(_LEAST_CHECKED, sum(box.num_words for box in boxes) // CHECKS_PER_ROUND)
        for _ in boxes:
            box = boxes[self._next % len(boxes)]
            if self._credit < box.num_words:
                break
            self._credit -= box.num_words
            self._next += 1
            if self._measured(box) != self._held[box]:
                return box.tensor
        else:
            self._credit = 0
        return None

    def foresee(self, staged: Sequence[Staged]) -> Foreseen | None:
        """The changes that `propose` will make, for it; nothing is written, and nothing may write meanwhile.

        Raises:
            CorruptDelta: as `propose`.
        """
        return self._runs.foresee(staged, _MOST_FORESEEN_BYTES) if self._on_cpu else None

    def propose(self, staged: Sequence[Staged], *, anchor: bool, foreseen: Foreseen | None = None) -> Proposed:
        """Work out every change; those in one run of the CPU's memory are made. Then `write` or `take_back`.

        Args:
            foreseen: of the same buckets, from `foresee`; if words changed since, it has no effect.
        Raises:
            CorruptDelta: a change does not fit the map; `take_back` what was made.
        """
        found = Proposed(staged, anchor)
        gains = found.gains
        for piece, first, last, gain in self._runs.add(staged, foreseen):
            gains[piece.box] = total((gains.get(piece.box, 0), gain))
            found.num_changed += last - first if piece.box.counts else 0
        kept = 0
        for change in self._changes(staged, anchor):
            gains[change.box] = total((gains.get(change.box, 0), change.gain))
            found.num_changed += change.new.numel() if change.box.counts else 0
            on_cpu = isinstance(change.where, slice) and self._on_cpu  # a view of the mapped file
            kept += 0 if on_cpu else change.new.numel()
            if found.changes is not None:
                found.changes.append(change)
            if kept > _KEPT_WORDS:
                found.changes = None
        found.gain, found.replicas = self._share(gains)
        found.mirrors = self._mirrors.changes(staged, anchor=anchor)
        if self._first:  # every rank holds them, the first one counts
            found.gain = total((found.gain, found.mirrors.gain))
            found.num_changed += found.mirrors.num_changed
        return found

    def take_back(self) -> None:
        """Undo what `propose` made; after it every bit is as it was before.

        Raises:
            RuntimeError: the words are not what `propose` left.
        """
        self._runs.take_back()

    def write(self, proposed: Proposed) -> None:
        """Do what `propose` left, since when the weights must not have changed. After an anchor, `measure`.

        A model that computes with copies of its weights may have a method `words_written`. It is called once, when all
        is written, with what did not go through `load_weights`: pairs of a storage's words and the places that changed.
        """
        changes = proposed.changes
        for change in self._changes(proposed.staged, proposed.anchor) if changes is None else changes:
            if isinstance(change.where, slice):
                change.box.words[change.where].copy_(change.new)
            else:
                change.box.words.index_copy_(0, change.where, change.new)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._mirrors.write(self._model, proposed.mirrors)
        hears: Hears | None = getattr(self._model, "words_written", None)
        if hears is not None and changes is not None:  # else it is too much to say
            # One by one, as they are asked for: what was not foreseen is decoded for it again.
            written = ((box.words, places) for box, places in self._runs.places())
            hears(itertools.chain(written, ((change.box.words, change.where) for change in changes)))
        self._runs.keep()
        for box, gain in proposed.gains.items():
            self._held[box] = total((self._held[box], gain))

    def _changes(self, staged: Sequence[Staged], anchor: bool) -> Iterator[Change]:
        """What `_runs` does not do."""
        for bucket, planes, dense in staged:
            if planes is not None:
                yield from self._sparse_bucket(bucket, planes)
                continue
            assert dense is not None
            words, at = to_engine(dense, self._device), 0
            for segment in bucket.segments:
                for box in self._map.meeting(segment.tensor, segment.start, segment.end):
                    spec, piece = self._specs[segment.tensor], words[at : at + segment.words]
                    yield from self._dense(box, spec, segment.start, piece, anchor)
                at += segment.words

    def _sparse_bucket(self, bucket: Bucket, planes: Planes) -> Iterator[Change]:
        if self._runs.take_whole(bucket):
            return
        positions, differences = decode(planes, self._device)
        at = 0
        for segment in bucket.segments:
            ends = torch.tensor([at, at + segment.words], device=positions.device)
            low, high = torch.searchsorted(positions, ends).tolist()
            spec = self._specs[segment.tensor]
            boxes = self._map.meeting(segment.tensor, segment.start, segment.end)
            for box in boxes if high > low else ():
                if box not in self._runs:
                    yield self._sparse(box, spec, positions[low:high], differences[low:high], segment.start - at)
            at += segment.words

    def _sparse(self, box: Box, spec: TensorSpec, positions: Tensor, differences: Tensor, offset: int) -> Change:
        """`offset` is added to bucket positions to make them positions of the tensor."""
        if box.contiguous:
            ends = torch.tensor(box.span, device=positions.device) - offset
            low, high = torch.searchsorted(positions, ends).tolist()
            step, shift = address_step(spec.width), offset + box.dst - box.src
            self._check(box, positions[low:high][:: max(1, high - low - 1)] + shift)  # they rise: first and last
            found = preview(
                box.words, positions[low:high], differences[low:high], shift=shift, start=spec.offset + offset * step
            )
            return Change(box, *found)
        positions = positions + offset
        indices, chosen = box.translate(positions)
        self._check(box, indices)
        old = box.words[indices]
        new = old + differences[chosen]
        addresses = self._addresses(spec, positions[chosen])
        return Change(box, indices, new, (digest_at(addresses, new) - digest_at(addresses, old)) & MASK)

    def _dense(self, box: Box, spec: TensorSpec, start: int, words: Tensor, anchor: bool) -> Iterator[Change]:
        low, high = max(start, box.span[0]), min(start + words.numel(), box.span[1])
        if low >= high:
            return
        if box.contiguous:
            place = slice(box.dst + low - box.src, box.dst + high - box.src)
            new, address = words[low - start : high - start], spec.offset + low * address_step(spec.width)
            before = 0 if anchor else digest_run(box.words[place], address)
            yield Change(box, place, new, (digest_run(new, address) - before) & MASK)
            return
        for first in range(low, high, _KEPT_WORDS >> 4):
            positions = torch.arange(first, min(first + (_KEPT_WORDS >> 4), high), device=words.device)
            indices, chosen = box.translate(positions)
            self._check(box, indices)
            new, addresses = words[positions[chosen] - start], self._addresses(spec, positions[chosen])
            before = 0 if anchor else digest_at(addresses, box.words[indices])
            yield Change(box, indices, new, (digest_at(addresses, new) - before) & MASK)

    def _measured(self, box: Box) -> int:
        """The digest of a box's words, counted or not."""
        spec = self._specs[box.tensor]
        if box.contiguous:
            run = box.words[box.dst : box.dst + box.num_words]
            return digest_run(run, spec.offset + box.src * address_step(spec.width))
        parts = []
        for low in range(box.span[0], box.span[1], _KEPT_WORDS >> 4):
            positions = torch.arange(low, min(low + (_KEPT_WORDS >> 4), box.span[1]), device=box.words.device)
            indices, chosen = box.translate(positions)
            parts.append(digest_at(self._addresses(spec, positions[chosen]), box.words[indices]))
        return total(parts)

    def _share(self, gains: dict[Box, int]) -> tuple[int, int]:
        counted = total(gain for box, gain in gains.items() if box.counts)
        replicas = 0
        for box in self._map.all():
            if not box.counts or box.replicas:
                term = _weighed(box, gains.get(box, 0))
                replicas += -box.replicas * term if box.counts else term
        return counted, replicas & MASK

    def _addresses(self, spec: TensorSpec, positions: Tensor) -> Tensor:
        return spec.offset + positions * address_step(spec.width)

    def _check(self, box: Box, indices: Tensor) -> None:
        # The map came from real views, so this cannot fail; a write outside a storage must not depend on that.
        if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < box.words.numel()):
            raise outside(box)


def _weighed(box: Box, gain: int) -> int:
    """A number of (source, gain): sums of these are equal only if the pairs are."""
    text = repr((box.tensor, box.source_key(), gain)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
