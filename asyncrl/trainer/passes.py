"""Passes of a model over a rank's part of a batch: as many on every rank, which gather shared parameters together."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.documents import Share
from asyncrl.trainer.micro_batch import MicroBatch, empty_micro_batch, micro_batches
from asyncrl.trainer.parallel import Ranks


class Passes:
    """How a model goes over a batch: in micro-batches of so many tokens. Its methods are collective."""

    def __init__(
        self, ranks: Ranks, max_tokens: int, device: torch.device, *, is_packed: bool, shares_prompts: bool = False
    ) -> None:
        """Take the ranks that share the model.

        Args:
            max_tokens: most tokens, padding included, in one forward pass of a rank.
            is_packed: the model reads packed rows, and no padded ones.
            shares_prompts: a packed row has the prompt of several rows once.
        """
        self._shares_prompts = shares_prompts
        self._ranks, self._device, self._is_packed = ranks, device, is_packed
        cp = None if ranks.meshes is None else ranks.meshes.cp
        self._share = None if cp is None else Share(cp.get_group(), cp.get_local_rank(), cp.size())
        # Ranks that share a row have a part each of its tokens.
        self._max_tokens = max_tokens if self._share is None else max_tokens * self._share.size

    def count(self, batch: Batch, rows: Ints) -> Denominators:
        """Tokens and rows of the whole mini-batch, on all ranks."""
        tokens = int((batch.starts_R[rows + 1] - batch.starts_R[rows]).sum())
        counts = self._ranks.total(torch.tensor([tokens, len(rows)], dtype=torch.float64))
        return Denominators(int(counts[0]), int(counts[1]), self._ranks.place.averaged)

    def micro_batches(self, batch: Batch, rows: Ints) -> Sequence[MicroBatch]:
        """This rank's micro-batches, as many as any rank has."""
        is_packed, share = self._is_packed, self._share
        found = micro_batches(
            *(batch, rows, self._max_tokens, self._device),
            is_packed=is_packed,
            share=share,
            shares_prompts=self._shares_prompts,
        )
        own = list(found)
        num_missing = self._ranks.largest(len(own)) - len(own)
        return own + [empty_micro_batch(self._device, is_packed=is_packed, share=share)] * num_missing

    @torch.no_grad()
    def collect(
        self, batch: Batch, measure: Callable[[MicroBatch], Tensor], parts: Sequence[Ints] | None = None
    ) -> Tensor:
        """[N] float32, what `measure` says of each micro-batch's trained tokens, in the batch's order.

        Args:
            parts: the rows of some mini-batches; tokens of others are 0. None: all rows.
        """
        values_N = torch.zeros(batch.num_trained, device=self._device)
        for rows in batch.rows_by_mini_batch if parts is None else parts:
            for micro in self.micro_batches(batch, rows):
                index = torch.from_numpy(micro.index_N).to(self._device)
                values_N[index] = measure(micro)[: len(index)]
        return values_N


def pick(values_N: Tensor, micro: MicroBatch) -> Tensor:
    """The micro-batch's part of what is known of the batch's trained tokens, in the micro-batch's order."""
    picked = values_N[torch.from_numpy(micro.index_N).to(values_N.device)]
    return picked if len(picked) else values_N.new_zeros(len(micro.slots_N))
