"""The trainer's parameters as shards: local tensors in the wire dtype and the words of the model that they are."""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from weightsync.errors import ShardError
from weightsync.layout import ITEMSIZE, WORD_DTYPE, Bucket, Segment, Words


@dataclass(frozen=True)
class LocalShard:
    """This rank's piece of one tensor.

    Attributes:
        name: as the checkpoint calls the tensor.
        tensor: wire dtype, contiguous, CPU or CUDA; its flat words are the segments end to end.
        segments: runs of the whole tensor, ascending; none for an empty shard.
    """

    name: str
    tensor: Tensor
    segments: tuple[Segment, ...]


def shards_of(named_parameters: Iterable[tuple[str, Tensor]], wire_dtype: str) -> list[LocalShard]:
    """This rank's shards of a model, each tensor once however many names it has.

    A collective when a DTensor has a placement other than sharded or replicated (then it is gathered), so all ranks
    call it with the same parameters in the same order. Plain tensors count as replicated: several ranks may list them.

    Args:
        named_parameters: in the checkpoint's names; DTensors or plain tensors, masters of any float dtype.
        wire_dtype: what servers hold, for example bfloat16; other dtypes than floats stay as they are.
    Raises:
        ShardError: a dtype that the format does not carry.
    """
    dtype = getattr(torch, wire_dtype)
    shards, seen = [], set()
    for name, parameter in named_parameters:
        local, segments = _local(name, parameter.detach())
        identity = (local.untyped_storage().data_ptr(), local.storage_offset(), tuple(local.shape), local.stride())
        if local.numel() and identity in seen:
            continue  # tied: one tensor under a second name
        seen.add(identity)
        wire = local.to(dtype) if local.is_floating_point() else local
        wire = wire.contiguous()
        element = str(wire.dtype).removeprefix("torch.")
        if element not in ITEMSIZE:
            raise ShardError(f"tensor {name} is {element}; the format carries {sorted(ITEMSIZE)}.")
        scale = 2 if ITEMSIZE[element] == 8 else 1
        runs = tuple(Segment(name, start * scale, count * scale) for start, count in segments)
        shards.append(LocalShard(name, wire, runs))
    return shards


class ShardWords:
    """The words of buckets, read from shards: where they lie if possible, else gathered into one scratch buffer."""

    def __init__(self, shards: Sequence[LocalShard]) -> None:
        self._shards = {shard.name: shard for shard in shards}
        self._starts = {shard.name: [segment.start for segment in shard.segments] for shard in shards}
        self._offsets = {shard.name: _offsets(shard.segments) for shard in shards}
        self._scratch: dict[int, Tensor] = {}

    def segments(self) -> list[Segment]:
        """Everything that the shards hold."""
        return [segment for shard in self._shards.values() for segment in shard.segments]

    def of(self, bucket: Bucket) -> Words:
        """[num_words] unsigned; valid until the next call.

        Raises:
            ShardError: the shards no longer hold a word of the bucket.
        """
        if len(bucket.segments) == 1:
            piece = self._piece(bucket.segments[0])
            if piece.device.type == "cpu":
                return piece.numpy().view(WORD_DTYPE[bucket.width])
        scratch = self._buffer(bucket)
        at = 0
        for segment in bucket.segments:
            piece = self._piece(segment)
            scratch[at : at + piece.numel()].copy_(piece, non_blocking=True)
            at += piece.numel()
        if scratch.is_pinned():
            torch.cuda.current_stream().synchronize()
        return scratch[:at].numpy().view(WORD_DTYPE[bucket.width])

    def _piece(self, segment: Segment) -> Tensor:
        """The segment's bytes, [words * width] uint8, on their device."""
        shard = self._shards.get(segment.tensor)
        i = -1 if shard is None else bisect.bisect_right(self._starts[segment.tensor], segment.start) - 1
        if shard is None or i < 0 or segment.end > shard.segments[i].end:
            raise ShardError(
                f"{segment} is no longer among this rank's shards. Shards may not move while a trainer runs; a new "
                "arrangement needs a new branch."
            )
        width = ITEMSIZE[str(shard.tensor.dtype).removeprefix("torch.")]
        flat = shard.tensor.reshape(-1).view(torch.uint8)
        at = (self._offsets[segment.tensor][i] + segment.start - shard.segments[i].start) * min(width, 4)
        return flat[at : at + segment.words * min(width, 4)]

    def _buffer(self, bucket: Bucket) -> Tensor:
        held = self._scratch.get(0)
        if held is None or held.numel() < bucket.num_bytes:
            on_device = any(shard.tensor.device.type == "cuda" for shard in self._shards.values())
            held = torch.empty(bucket.num_bytes, dtype=torch.uint8, pin_memory=on_device)
            self._scratch[0] = held
        return held


def _local(name: str, parameter: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
    """The local tensor and its (start, count) runs of elements of the whole one."""
    if not isinstance(parameter, DTensor):
        return parameter, [(0, parameter.numel())] if parameter.numel() else []
    if not all(type(placement) in (Shard, Replicate) for placement in parameter.placements):
        whole = parameter.full_tensor()
        return whole, [(0, whole.numel())] if whole.numel() else []
    local = parameter.to_local()
    shape, offset = _held(parameter)
    if tuple(local.shape) != tuple(shape):
        raise ShardError(f"tensor {name}: local shape {tuple(local.shape)}, its placements say {tuple(shape)}.")
    return local, box_runs(tuple(parameter.shape), shape, offset)


def _held(parameter: DTensor) -> tuple[list[int], list[int]]:
    """Shape and offset of this rank's box: every mesh dimension in turn cuts what the ones before left, in chunks."""
    shape, offset = list(parameter.shape), [0] * parameter.dim()
    mesh = parameter.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return [0] * parameter.dim(), offset
    for i, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            size = shape[placement.dim]
            chunk = -(-size // mesh.size(i))
            start = min(coordinate[i] * chunk, size)
            offset[placement.dim] += start
            shape[placement.dim] = min(start + chunk, size) - start
    return shape, offset


def box_runs(whole: Sequence[int], shape: Sequence[int], offset: Sequence[int]) -> list[tuple[int, int]]:
    """(start, count) of the contiguous runs of a box inside a row-major tensor, ascending.

    Args:
        whole: shape of the tensor.
        shape, offset: of the box.
    """
    if math.prod(shape) == 0:
        return []
    # Trailing dimensions that the box takes whole belong to the run; so does the first one that it cuts.
    split = len(whole)
    while split > 0 and shape[split - 1] == whole[split - 1]:
        split -= 1
    outer = max(0, split - 1)
    inner = math.prod(whole[split:])
    count = (shape[outer] if split else 1) * inner
    strides = [math.prod(whole[i + 1 :]) for i in range(len(whole))]
    base = sum(o * s for o, s in zip(offset, strides, strict=True))
    starts = np.array([base])
    for size, stride in zip(shape[:outer], strides[:outer], strict=True):
        starts = (starts[:, None] + np.arange(size) * stride).reshape(-1)
    return [(int(start), count) for start in starts]


def _offsets(segments: Sequence[Segment]) -> list[int]:
    at, offsets = 0, []
    for segment in segments:
        offsets.append(at)
        at += segment.words
    return offsets
