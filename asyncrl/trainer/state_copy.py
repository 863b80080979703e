"""A rank's state copied out of the trainer's way: it trains on while the copy is written.

One buffer for each tensor, made once and filled anew by each copy, so that a rank holds at most one copy of its shard:
12 bytes a parameter with AdamW in float32. Buffers of what lies on a device are pinned, so that the copy runs at the
link's rate.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from asyncrl.trainer.rank_files import Piece


class StateCopy:
    """The buffers of one rank. Nobody else may read them while they are filled."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes that the buffers hold."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @torch.no_grad()
    def fill(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Copy the pieces as they are now; returns when what they are copies of may change."""
        copies, on_device = [], False
        for piece in pieces:
            buffer = self._buffer(piece)
            buffer.copy_(piece.tensor, non_blocking=True)
            on_device |= piece.tensor.is_cuda
            copies.append(replace(piece, tensor=buffer))
        if on_device:
            torch.cuda.current_stream().synchronize()
        return copies

    def _buffer(self, piece: Piece) -> Tensor:
        tensor, held = piece.tensor, self._buffers.get(piece.name)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[piece.name] = held
        return held
