"""The trainer's parameters as shards: local tensors, their wire dtypes, and the words of the model that they are."""

import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from weightsync.errors import ShardError
from weightsync.held_runs import Run, flat_runs, held, is_sharded_or_replicated
from weightsync.layout import ITEMSIZE, WORD_DTYPE, Bucket, Segment, Words
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir

_NO_CAST_TO = ("float8_e4m3fn", "float8_e5m2", "float64")
"""A scale belongs to the first two; words of the last are half elements."""


@dataclass(frozen=True)
class LocalShard:
    """This rank's piece of one tensor.

    Attributes:
        name: as the checkpoint calls the tensor.
        tensor: contiguous, CPU or CUDA; its flat elements, in the wire dtype, are the segments end to end.
        segments: runs of the whole tensor, ascending; none for an empty shard.
        wire: what its elements are cast to on their way out; None: they are in the wire dtype.
        made: makes of `tensor` what is sent, of the same shape, before the cast (a frozen weight with an adapter's
            product added); called when words of the shard are read. None: `tensor` itself.
        frozen: its words are the same for as long as the trainer runs: what was compared once need not be read again.
    """

    name: str
    tensor: Tensor
    segments: tuple[Segment, ...]
    wire: torch.dtype | None = None
    made: Callable[[Tensor], Tensor] | None = None
    frozen: bool = False


@dataclass(frozen=True)
class Part:
    """A tensor of the checkpoint that is a part of one of the trainer's: one expert of a stack, half of two in one.

    Attributes:
        of: the trainer's.
        box: (start, end) of positions along each dimension of it.
    """

    of: Tensor
    box: tuple[Run, ...]


Named = Iterable[tuple[str, Tensor | Part]]
"""Tensors by the checkpoint's names."""


def shards_of(named_parameters: Named, wire: str | Mapping[str, str]) -> list[LocalShard]:
    """This rank's shards of a model, each tensor once however many names it has. Nothing is copied.

    A collective when a DTensor has a placement other than sharded (strided or not) or replicated (then it is
    gathered), so all ranks call it with the same parameters in the same order. Plain tensors count as replicated:
    several ranks may list them.

    Args:
        named_parameters: DTensors or plain tensors or parts of them, masters of any float dtype.
        wire: what servers hold: one dtype, for example bfloat16, for every float, others stay as they are; or the
            dtype of each tensor by name (`Manifest.dtypes`), for models that mix them.
    Raises:
        ShardError: a dtype that the format does not carry, or a cast that would need more than rounding.
    """
    shards, seen = [], set()
    for name, parameter in named_parameters:
        if isinstance(parameter, Part):
            local, runs = _local_part(name, parameter)
        else:
            local, runs = _local(name, parameter.detach())
        identity = (local.untyped_storage().data_ptr(), local.storage_offset(), tuple(local.shape), local.stride())
        if local.numel() and identity in seen:
            continue  # tied: one tensor under a second name
        seen.add(identity)
        element = _wire_dtype(name, local.dtype, wire)
        scale = 2 if ITEMSIZE[element] == 8 else 1
        segments = tuple(Segment(name, start * scale, count * scale) for start, count in runs)
        dtype = getattr(torch, element)
        shards.append(LocalShard(name, local.contiguous(), segments, None if dtype == local.dtype else dtype))
    return shards


def untrained_shards(directory: Path, manifest: Manifest, held: Collection[str]) -> list[LocalShard]:
    """What the checkpoint has and the trainer does not (heads that it never builds, frozen towers), where it lies.

    Such tensors never change: they cost a publish nothing, and head's digest covers them like all others. Every rank
    may list them.

    Args:
        directory: the model directory; its files are mapped, not read.
        held: names of what the trainer holds.
    Raises:
        ModelDirError: the directory cannot be read.
        ShardError: the trainer holds a tied tensor, but under the name that holds no words of its own.
    """
    for alias, name in manifest.ties:
        if alias in held and name not in held:
            raise ShardError(
                f"the trainer holds {alias}, but not {name}, to which the model directory ties it: servers would never "
                f"see it change. List the tensor as {name}."
            )
    stored, rest = ModelDir(directory), []
    for spec in manifest.tensors:
        if spec.name not in held and spec.num_words:
            found = stored.tensors[spec.name]
            # Copy on write: torch takes no memory that it may not write to.
            words = np.memmap(found.file, np.uint8, "c", found.begin, (found.num_bytes,))
            tensor = torch.from_numpy(words).view(getattr(torch, spec.dtype)).reshape(spec.shape)
            rest.append(LocalShard(spec.name, tensor, (Segment(spec.name, 0, spec.num_words),), frozen=True))
    return rest


class ShardWords:
    """The words of buckets, read from shards: where they lie if possible, else gathered into scratch, in turns."""

    def __init__(self, shards: Sequence[LocalShard], kept: int = 1) -> None:
        """`kept`: buckets whose words are in use at once."""
        self._shards = {shard.name: shard for shard in shards}
        self._starts = {shard.name: [segment.start for segment in shard.segments] for shard in shards}
        self._offsets = {shard.name: _offsets(shard.segments) for shard in shards}
        self._scratch: deque[Tensor] = deque(torch.empty(0, dtype=torch.uint8) for _ in range(kept))
        self._made: tuple[str, Tensor] | None = None  # of one shard at a time: buckets read a shard's words in a row

    @property
    def on_device(self) -> bool:
        """Whether a shard lies in a device's memory."""
        return any(shard.tensor.device.type == "cuda" for shard in self._shards.values())

    def segments(self) -> list[Segment]:
        """Everything that the shards hold."""
        return [segment for shard in self._shards.values() for segment in shard.segments]

    def are_frozen(self, bucket: Bucket) -> bool:
        """Whether no word of the bucket changes for as long as the trainer runs."""
        return all(self._shard_of(segment).frozen for segment in bucket.segments)

    def of(self, bucket: Bucket) -> Words:
        """[num_words] unsigned; valid until `kept` more calls were made.

        Raises:
            ShardError: the shards no longer hold a word of the bucket.
        """
        if len(bucket.segments) == 1:
            piece, wire = self._piece(bucket.segments[0])
            if wire is None and piece.device.type == "cpu":
                return piece.numpy().view(WORD_DTYPE[bucket.width])
        scratch = self._buffer(bucket)
        self.copy(bucket, scratch)
        if scratch.is_pinned():
            torch.cuda.current_stream().synchronize()
        return scratch[: bucket.num_bytes].numpy().view(WORD_DTYPE[bucket.width])

    def copy(self, bucket: Bucket, target: Tensor) -> None:
        """Copy a bucket's words; from a device into pinned memory the copy is only begun, on the current stream.

        Args:
            target: [num_bytes or more] uint8 on the CPU, aligned to the bucket's words.
        Raises:
            ShardError: as `of`.
        """
        at = 0
        for segment in bucket.segments:
            piece, wire = self._piece(segment)
            num_bytes = segment.words * bucket.width
            room = target[at : at + num_bytes]
            (room if wire is None else room.view(wire)).copy_(piece, non_blocking=True)
            at += num_bytes

    def _piece(self, segment: Segment) -> tuple[Tensor, torch.dtype | None]:
        """The segment on its device, and what its elements are cast to; without a cast its bytes, as uint8."""
        shard = self._shard_of(segment)
        i = bisect.bisect_right(self._starts[segment.tensor], segment.start) - 1
        if i < 0 or segment.end > shard.segments[i].end:
            raise _moved(segment)
        at = self._offsets[segment.tensor][i] + segment.start - shard.segments[i].start
        tensor, wire = self._sent(shard)
        if wire is not None:
            return tensor.reshape(-1)[at : at + segment.words], wire
        width = min(tensor.element_size(), 4)
        return tensor.reshape(-1).view(torch.uint8)[at * width : (at + segment.words) * width], None

    def _shard_of(self, segment: Segment) -> LocalShard:
        shard = self._shards.get(segment.tensor)
        if shard is None:
            raise _moved(segment)
        return shard

    def _sent(self, shard: LocalShard) -> tuple[Tensor, torch.dtype | None]:
        """What is sent of a shard, and what it is cast to."""
        if shard.made is None:
            return shard.tensor, shard.wire
        if self._made is None or self._made[0] != shard.name:
            self._made = None  # let go of before the next one is made
            self._made = (shard.name, shard.made(shard.tensor))
        made = self._made[1]
        wire = shard.tensor.dtype if shard.wire is None else shard.wire
        return made, None if made.dtype == wire else wire

    def _buffer(self, bucket: Bucket) -> Tensor:
        if self._scratch[0].numel() < bucket.num_bytes:
            self._scratch[0] = torch.empty(bucket.num_bytes, dtype=torch.uint8, pin_memory=self.on_device)
        self._scratch.rotate(-1)
        return self._scratch[-1]


def _moved(segment: Segment) -> ShardError:
    return ShardError(
        f"{segment} is no longer among this rank's shards. Shards may not move while a trainer runs; a new arrangement "
        "needs a new branch."
    )


def _local(name: str, parameter: Tensor) -> tuple[Tensor, list[Run]]:
    """The local tensor and its (start, count) runs of elements of the whole one."""
    if not isinstance(parameter, DTensor):
        return parameter, [(0, parameter.numel())] if parameter.numel() else []
    if not is_sharded_or_replicated(parameter.placements):
        whole = parameter.full_tensor()
        return whole, [(0, whole.numel())] if whole.numel() else []
    local, runs = parameter.to_local(), held(parameter)
    shape = [sum(high - low for low, high in dim) for dim in runs]
    flat = flat_runs(tuple(parameter.shape), runs)
    if local.numel() != sum(count for _, count in flat) or (flat and list(local.shape) != shape):
        raise ShardError(f"tensor {name}: local shape {tuple(local.shape)}, its placements say {tuple(shape)}.")
    return local, flat


def _local_part(name: str, part: Part) -> tuple[Tensor, list[Run]]:
    """As `_local`, of what this rank holds of a part."""
    local, _ = _local(name, part.of.detach())
    runs = held(part.of) if isinstance(part.of, DTensor) else [[(0, size)] for size in part.of.shape]
    if local.shape == part.of.shape:  # whole here, gathered or not
        runs = [[(0, size)] for size in part.of.shape]
    inside = []
    for dim, (low, high) in enumerate(part.box):
        before = sum(min(end, low) - start for start, end in runs[dim] if start < low)
        met = [(max(start, low) - low, min(end, high) - low) for start, end in runs[dim] if start < high and end > low]
        local = local.narrow(dim, before, sum(end - start for start, end in met))
        inside.append(met)
    return local, flat_runs([high - low for low, high in part.box], inside)


def _wire_dtype(name: str, dtype: torch.dtype, wire: str | Mapping[str, str]) -> str:
    """What servers hold of a tensor. A name that the wire does not list keeps its dtype; the plan then refuses it."""
    own = str(dtype).removeprefix("torch.")
    chosen = (wire if dtype.is_floating_point else own) if isinstance(wire, str) else wire.get(name, own)
    if own not in ITEMSIZE or chosen not in ITEMSIZE:
        raise ShardError(f"tensor {name} is {own}; the format carries {sorted(ITEMSIZE)}.")
    if chosen != own and (chosen in _NO_CAST_TO or not (dtype.is_floating_point and "float" in chosen)):
        raise ShardError(
            f"tensor {name} is {own} in the trainer and {chosen} on the wire: rounding alone does not make the one "
            "from the other. Hold it in the trainer as the servers do, or serve a model of another dtype."
        )
    return chosen


def _offsets(segments: Sequence[Segment]) -> list[int]:
    at, offsets = 0, []
    for segment in segments:
        offsets.append(at)
        at += segment.words
    return offsets
