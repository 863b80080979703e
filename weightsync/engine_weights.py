"""One engine rank's weights: measure them, work out what a ticket would change, write it. Nothing else touches them.

`verify` reads the old words, so a wrong base, a wrong map or a damaged part shows in the digest before anything is
written; `write` then cannot meet a surprise of ours.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weightsync import engine_runs
from weightsync.address_map import AddressMap, Box, Loads
from weightsync.digest import MASK, total
from weightsync.engine_words import decode, digest_at, digest_run, preview, to_engine, unsigned
from weightsync.errors import CorruptDelta
from weightsync.layout import WORD_DTYPE, Bucket, Index, TensorSpec, Words, address_step
from weightsync.mirrors import MirrorChanges, Mirrors
from weightsync.planes import Planes, decode_planes
from weightsync.ticket import Staged

CHECKS_PER_ROUND = 64
"""Spot checks after which about every word was read again; one costs the pause that share of a read of the weights."""

_LEAST_CHECKED = 1 << 16  # words
_KEPT_WORDS = 1 << 26  # up to here `write` takes what `verify` worked out; beyond, it is worked out again


class Change(NamedTuple):
    """New words for a place in a storage: a slice of it, or indices. numpy where `engine_runs` made it, else torch."""

    box: Box
    where: Tensor | slice | Index
    new: Tensor | Words
    gain: int

    @property
    def num_words(self) -> int:
        return len(self.new)


@dataclass
class Verified:
    """What a ticket would do here.

    Attributes:
        gain: this rank's share of the digest's gain; of an anchor, of the new digest itself.
        replicas: 0 in the sum over ranks if all replicas of a word go through the same change.
        num_changed: words that are counted here.
        gains: of each box that changes, counted or not; of an anchor, its new digest.
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
        self._views: dict[Box, Words] = {}
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

    def verify(self, staged: Sequence[Staged], *, anchor: bool) -> Verified:
        """Work out every change without writing one.

        Raises:
            CorruptDelta: a change does not fit the map.
        """
        found = Verified(staged, anchor)
        gains = found.gains
        kept = 0
        for change in self._changes(staged, anchor):
            gains[change.box] = total((gains.get(change.box, 0), change.gain))
            found.num_changed += change.num_words if change.box.counts else 0
            on_cpu = isinstance(change.where, slice) and self._on_cpu  # a view of the mapped file
            kept += 0 if on_cpu else change.num_words
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

    def write(self, verified: Verified) -> None:
        """Do what `verify` worked out, since when the weights must not have changed. After an anchor, `measure`."""
        changes = verified.changes
        for change in self._changes(verified.staged, verified.anchor) if changes is None else changes:
            where, new = change.where, change.new
            if isinstance(where, np.ndarray):
                assert isinstance(new, np.ndarray), "indices and words are of one kind"
                engine_runs.put(self._numpy_words(change.box), where, new)
            elif isinstance(new, Tensor):
                if isinstance(where, slice):
                    change.box.words[where].copy_(new)
                else:
                    change.box.words.index_copy_(0, where, new)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._mirrors.write(self._model, verified.mirrors)
        for box, gain in verified.gains.items():
            self._held[box] = total((self._held[box], gain))

    def _changes(self, staged: Sequence[Staged], anchor: bool) -> Iterator[Change]:
        for bucket, planes, dense in staged:
            if planes is not None and self._on_cpu:
                yield from self._sparse_runs(bucket, planes)
                continue
            if planes is not None:
                positions, differences = decode(planes, self._device)
            else:
                assert dense is not None
                words = to_engine(dense, self._device)
            at = 0
            for segment in bucket.segments:
                spec = self._specs[segment.tensor]
                boxes = self._map.meeting(segment.tensor, segment.start, segment.end)
                if planes is None:
                    for box in boxes:
                        yield from self._dense(box, spec, segment.start, words[at : at + segment.words], anchor)
                elif boxes:
                    ends = torch.tensor([at, at + segment.words], device=positions.device)
                    low, high = torch.searchsorted(positions, ends).tolist()
                    for box in boxes if high > low else ():
                        yield self._sparse(box, spec, positions[low:high], differences[low:high], segment.start - at)
                at += segment.words

    def _sparse_runs(self, bucket: Bucket, planes: Planes) -> Iterator[Change]:
        positions, differences = decode_planes(planes, WORD_DTYPE[bucket.width])
        cuts = np.searchsorted(positions, np.cumsum([segment.words for segment in bucket.segments])).tolist()
        at = low = 0
        for segment, high in zip(bucket.segments, cuts, strict=True):
            spec, offset = self._specs[segment.tensor], segment.start - at
            for box in self._map.meeting(segment.tensor, segment.start, segment.end) if high > low else ():
                run = positions[low:high], differences[low:high]
                if box.contiguous:
                    yield self._run(box, spec, *run, offset)
                else:
                    changed = torch.from_numpy(run[0]), to_engine(run[1], self._device)
                    yield self._sparse(box, spec, *changed, offset)
            at, low = at + segment.words, high

    def _run(self, box: Box, spec: TensorSpec, positions: Index, differences: Words, offset: int) -> Change:
        """As `_sparse`, of a box in one run in the CPU's memory."""
        low, high = np.searchsorted(positions, [end - offset for end in box.span]).tolist()
        words, shift = self._numpy_words(box), offset + box.dst - box.src
        positions, differences = positions[low:high], differences[low:high]
        if high > low and not (positions[0] + shift >= 0 and positions[-1] + shift < words.size):  # they rise
            raise _outside(box)
        start = spec.offset + offset * address_step(spec.width)
        return Change(box, *engine_runs.preview(words, positions, differences, shift=shift, start=start))

    def _numpy_words(self, box: Box) -> Words:
        if box not in self._views:
            self._views[box] = unsigned(box.words)
        return self._views[box]

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
            raise _outside(box)


def _outside(box: Box) -> CorruptDelta:
    return CorruptDelta(f"{box.tensor}: a change lies outside its storage of {box.words.numel()} words.")


def _weighed(box: Box, gain: int) -> int:
    """A number of (source, gain): sums of these are equal only if the pairs are."""
    text = repr((box.tensor, box.source_key(), gain)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
