"""A safetensors file a rank, each tensor with its place in the whole, so that any number of ranks reads them back."""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from asyncrl.errors import CheckpointError
from asyncrl.trainer.tensor_file import write_tensors
from weightsync.held_runs import held

LAYOUT = "layout"
PATTERN = "rank-*.safetensors"


@dataclass(frozen=True)
class Box:
    """A part of a tensor: its shape, where it begins, and the shape of the whole."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A rank's part of a named tensor."""

    name: str
    tensor: Tensor
    box: Box


def box_of(tensor: Tensor) -> Box:
    """What this rank holds of a tensor: its shard, or all of it."""
    whole = tuple(tensor.shape)
    if isinstance(tensor, DTensor):
        runs = [dim or [(0, 0)] for dim in held(tensor)]
        assert all(len(dim) == 1 for dim in runs), f"what a rank holds of a tensor of shape {whole} is no box: {runs}"
        return Box(tuple(high - low for ((low, high),) in runs), tuple(low for ((low, _),) in runs), whole)
    return Box(whole, (0,) * len(whole), whole)


def local(tensor: Tensor) -> Tensor:
    """The storage that this rank holds of a tensor."""
    found = tensor.detach()
    return found.to_local() if isinstance(found, DTensor) else found


def rank_file(directory: Path, rank: int) -> Path:
    """Where a rank's tensors are."""
    return directory / f"rank-{rank:05d}.safetensors"


def write(path: Path, pieces: Iterable[Piece]) -> tuple[int, str]:
    """Write a rank's pieces and flush them to the disk; returns the file's size in bytes and its blake3.

    Raises:
        OSError: the disk is full or fails.
    """
    tensors, layout = {}, {}
    for piece in pieces:
        tensors[piece.name] = piece.tensor
        layout[piece.name] = {"offset": piece.box.offset, "whole": piece.box.whole}
    return write_tensors(path, tensors, {LAYOUT: json.dumps(layout)})


class RankFiles:
    """All ranks' files of a checkpoint, open for reading. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._files: list[tuple[Any, Mapping[str, Any]]] = []  # Any: safetensors ships no types

    def __enter__(self) -> Self:
        for path in sorted(self._directory.glob(PATTERN)):
            try:
                file = self._stack.enter_context(safe_open(path, "pt"))
                self._files.append((file, json.loads(file.metadata()[LAYOUT])))
            except (SafetensorError, KeyError, TypeError, ValueError) as error:
                self._stack.close()
                raise CheckpointError(f"{path} cannot be read: {error}. Use an older checkpoint.") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def names(self) -> set[str]:
        """Every tensor that some rank wrote."""
        return {name for _, layout in self._files for name in layout}

    def read_into(self, name: str, target: Tensor) -> None:
        """Fill what this rank holds of `target` from the parts that the writing ranks held.

        Raises:
            CheckpointError: the tensor is missing, has another shape, or is not covered by the files.
        """
        box, destination = box_of(target), local(target)
        filled, seen = 0, set()
        for file, layout in self._files:
            if name not in layout:
                continue
            if tuple(layout[name]["whole"]) != box.whole:
                raise CheckpointError(
                    f"{name} in {self._directory} has shape {layout[name]['whole']}, the model's has "
                    f"{list(box.whole)}: the checkpoint is of another model. Resume with the model it was made from."
                )
            part = file.get_slice(name)
            offset, shape = tuple(layout[name]["offset"]), tuple(part.get_shape())
            there, here = _overlap(offset, shape, box)
            if there is not None and (offset, shape) not in seen:  # ranks that are copies of each other: once
                seen.add((offset, shape))
                piece = part[there] if there else file.get_tensor(name)
                destination[here].copy_(piece)
                filled += piece.numel()
        if filled < destination.numel():
            raise CheckpointError(
                f"{name} in {self._directory} covers {filled} of the {destination.numel()} elements that this rank "
                "needs: files of ranks are missing, or the checkpoint is of another model. Use an older checkpoint."
            )

    def read(self, name: str) -> Tensor:
        """A whole tensor.

        Raises:
            CheckpointError: as for read_into.
        """
        for file, layout in self._files:
            if name in layout:
                dtype = file.get_slice(name)[..., :0].dtype if layout[name]["whole"] else file.get_tensor(name).dtype
                whole = torch.empty(layout[name]["whole"], dtype=dtype)
                self.read_into(name, whole)
                return whole
        raise CheckpointError(f"{name} is not in {self._directory}: the checkpoint is of another model.")

    def own(self, rank: int, prefix: str) -> dict[str, Tensor]:
        """Tensors that a rank wrote for itself, by name without the prefix; empty if there was no such rank."""
        if rank >= len(self._files):
            return {}
        file, layout = self._files[rank]
        return {name.removeprefix(prefix): file.get_tensor(name) for name in layout if name.startswith(prefix)}


Slices = tuple[slice, ...]


def _overlap(offset: tuple[int, ...], shape: tuple[int, ...], box: Box) -> tuple[Slices | None, Slices]:
    """Where a stored part and a wanted box meet, in coordinates of each; None if nowhere."""
    there, here = [], []
    for start, size, wanted, length in zip(offset, shape, box.offset, box.shape, strict=True):
        low, high = max(start, wanted), min(start + size, wanted + length)
        if high <= low:
            return None, ()
        there.append(slice(low - start, high - start))
        here.append(slice(low - wanted, high - wanted))
    return tuple(there), tuple(here)
