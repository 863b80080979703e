"""Tokens of an optimizer step whose loss is not a number: masked where they are, counted over ranks, named by group."""

import logging

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.base import require_finite
from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.micro_batch import MicroBatch
from asyncrl.trainer.parallel import Ranks

log = logging.getLogger(__name__)

MAX_NAMED = 8
"""Groups that a message names; the rest are counted."""


class NonFiniteTokens:
    """Collects them over the micro-batches of one optimizer step; the device is asked once, at the end."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._found: list[tuple[MicroBatch, Tensor]] = []

    def add(self, micro: MicroBatch, nonfinite_RS: Tensor) -> None:
        """Take a micro-batch's, [R, S] bool."""
        self._found.append((micro, nonfinite_RS.detach()))

    def require_few(self, ranks: Ranks, num_tokens: int, *, limit: float) -> None:
        """Name the groups of those there are. Every rank calls it together, before the optimizer.

        Args:
            num_tokens: of the mini-batch, on all ranks.
            limit: largest share of them.
        Raises:
            NonFiniteError: the share is above the limit; the message names this rank's groups.
        """
        # Of the micro-batches' own tokens: one without any has a slot all the same.
        flags = [found_RS.flatten()[micro.slots_N[: len(micro.index_N)]] for micro, found_RS in self._found]
        index_N = np.concatenate([micro.index_N for micro, _ in self._found])
        index_N = np.sort(index_N[torch.cat(flags).cpu().numpy()])
        num_nonfinite = float(ranks.total(torch.tensor([len(index_N)], dtype=torch.float64))[0])
        named = _named(self._gids(index_N))
        if len(index_N):
            log.warning("%d tokens are left out, their loss is NaN or infinite: of %s", len(index_N), named)
        require_finite(num_nonfinite, num_tokens, limit=limit, where=f"; on rank {ranks.rank} of {named}")

    def _gids(self, index_N: Ints) -> list[str]:
        """Groups of these trained tokens, each once."""
        if not len(index_N):
            return []
        gid_R = [g.gid for g in self._batch.groups for t in g.trajectories for _ in t.rows]
        rows = np.searchsorted(self._batch.starts_R, index_N, side="right") - 1
        return list(dict.fromkeys(gid_R[row] for row in rows.tolist()))


def _named(gids: list[str]) -> str:
    if not gids:
        return "no group"
    more = f" and {len(gids) - MAX_NAMED} more" if len(gids) > MAX_NAMED else ""
    return f"group{'s' if len(gids) > 1 else ''} {', '.join(gids[:MAX_NAMED])}{more}"
