"""Selections over a whole mini-batch: all ranks' tokens are looked at in one place, and each rank gets its own back."""

import msgpack
import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.base import SelectionRule
from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.parallel import Ranks

NUM_FACTS = 4


def select(
    rule: SelectionRule,
    batch: Batch,
    rows: Ints,
    logprobs_N: Tensor,
    proximal_N: Tensor,
    advantages_N: Tensor,
    ranks: Ranks,
) -> Tensor:
    """[N] bool, what `rule` picks among the tokens of `rows` on all ranks; False for other tokens of the batch.

    Rank 0 applies the rule, in the order of ranks, so that one source of chance serves all. It moves 16 bytes a token.
    """
    index_N = torch.from_numpy(_tokens_of(batch, rows))
    facts = (logprobs_N, proximal_N, torch.from_numpy(batch.sampler_N), advantages_N)
    own = torch.stack([fact.detach().cpu().float()[index_N] for fact in facts])
    # Of the ranks that train the same groups one speaks; each gets the answer of its groups.
    blobs = ranks.gather(own.numpy().tobytes() if ranks.place.counts else b"")
    answer = None
    if blobs is not None:
        spoken = blobs[:: len(blobs) // ranks.place.data_world]
        parts = [np.frombuffer(blob, dtype=np.float32).reshape(NUM_FACTS, -1) for blob in spoken]
        whole = torch.from_numpy(np.concatenate(parts, axis=1))
        picked = rule(*whole, generator=torch.default_generator).numpy()
        ends = np.cumsum([part.shape[1] for part in parts])
        answer = msgpack.packb([part.tobytes() for part in np.split(picked, ends[:-1])])
    mine = msgpack.unpackb(ranks.broadcast(answer))[ranks.place.data_rank]
    selected_N = torch.zeros(batch.num_trained, dtype=torch.bool)
    selected_N[index_N] = torch.from_numpy(np.frombuffer(mine, dtype=np.bool_).copy())
    return selected_N.to(logprobs_N.device)


def _tokens_of(batch: Batch, rows: Ints) -> Ints:
    spans = [np.arange(batch.starts_R[row], batch.starts_R[row + 1]) for row in rows]
    return np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
