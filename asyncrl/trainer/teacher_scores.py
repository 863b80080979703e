"""What teachers said of the trained tokens of a batch: columns of its rows, written when the tokens were sampled."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.distillation import TOPK, topk_distance
from asyncrl.errors import ConfigError
from asyncrl.trainer.batch import Batch
from asyncrl.trainer.micro_batch import MicroBatch
from asyncrl.trainer.tally import Tally
from buffer import Row

_PREFIX, _LOGPROBS, _TOP_LOGPROBS, _TOP_IDS = "teacher/", "/logprobs", "/topk_logprobs", "/topk_ids"


def needs_teacher(algorithm: Algorithm) -> bool:
    """Whether anything in the algorithm compares with a teacher."""
    return algorithm.distill_coef > 0 or "teacher_BT" in algorithm.columns


def looks_at_top(algorithm: Algorithm) -> bool:
    """Whether the algorithm compares with a teacher's likeliest tokens."""
    return algorithm.distill_coef > 0 and algorithm.distill_estimator == TOPK


def require_teachers(algorithm: Algorithm, top_k: Mapping[str, int]) -> None:
    """Refuse a run whose algorithm learns from what no teacher gives: nothing would be learned from it.

    Args:
        top_k: likeliest tokens that each teacher keeps, by name.
    Raises:
        ConfigError: there is no teacher, or one without the likeliest tokens that the algorithm looks at.
    """
    if needs_teacher(algorithm) and not top_k:
        raise ConfigError(
            f"algorithm.name = {algorithm.name!r} with algorithm.distill_coef = {algorithm.distill_coef} learns from a "
            "teacher, but teachers is empty: nothing would be learned from it. List one under teachers."
        )
    without = [name for name, count in top_k.items() if count == 0]
    if looks_at_top(algorithm) and without:
        raise ConfigError(
            f"algorithm.distill_estimator = {TOPK!r} compares with a teacher's likeliest tokens, but top_k of teacher "
            f"{without[0]!r} is 0: its answers would teach nothing. Set top_k (32 is usual)."
        )


def teacher_logprobs(batch: Batch) -> Tensor:
    """[N] float32, nats, of the trained tokens by the first teacher of the run that scored their row; NaN without one.

    The columns of a row stand in the order of the configuration.
    """
    values_N = np.full(batch.num_trained, np.nan, dtype=np.float32)
    for tokens, row, teacher in _scored(batch):
        values_N[tokens] = row.columns[teacher + _LOGPROBS][batch.positions_N[tokens]]
    return torch.from_numpy(values_N)


def teacher_top(batch: Batch) -> tuple[Tensor, Tensor]:
    """The same teacher's likeliest tokens: logprobs [N, K] float32, NaN without a teacher, and ids [N, K] int64.

    K is the smallest number that any of these teachers kept, at least 1.
    """
    scored = [
        (tokens, row.columns[teacher + _TOP_LOGPROBS], row.columns[teacher + _TOP_IDS])
        for tokens, row, teacher in _scored(batch)
        if teacher + _TOP_IDS in row.columns
    ]
    width = min((ids.shape[1] for _, _, ids in scored), default=1)
    logprobs_NK = np.full((batch.num_trained, width), np.nan, dtype=np.float32)
    ids_NK = np.zeros((batch.num_trained, width), dtype=np.int64)
    for tokens, logprobs, ids in scored:
        places = batch.positions_N[tokens]
        logprobs_NK[tokens], ids_NK[tokens] = logprobs[places, :width], ids[places, :width]
    return torch.from_numpy(logprobs_NK), torch.from_numpy(ids_NK)


def distance_to_top(top: tuple[Tensor, Tensor], micro: MicroBatch, device: torch.device) -> Callable[[Tensor], Tensor]:
    """What makes a micro-batch's [M, V] logits their distance to the teacher's likeliest tokens, [M].

    Args:
        top: of the batch, as `teacher_top` gives them.
    """
    index = torch.from_numpy(micro.index_N)
    logprobs_NK, ids_NK = (values[index].to(device) for values in top)
    if not len(index):  # a micro-batch without trained tokens has one position all the same
        logprobs_NK = logprobs_NK.new_full((len(micro.slots_N), logprobs_NK.shape[1]), torch.nan)
        ids_NK = ids_NK.new_zeros(logprobs_NK.shape)
    return lambda logits_MV: topk_distance(logits_MV, micro.own(logprobs_NK), micro.own(ids_NK))


def measure_teacher(logprobs_N: Tensor, teacher_N: Tensor, tally: Tally) -> None:
    """Add distill/reverse_kl, nats, over tokens that a teacher scored, and distill/scored_frac, their share.

    Args:
        logprobs_N: float, nats, of the policy at the start of the step.
        teacher_N: float, nats, NaN where no teacher scored the token.
    """
    gaps_N = logprobs_N.detach().cpu().double() - teacher_N.double()
    gaps_N = gaps_N[gaps_N.isfinite()]
    tally.mean("distill/reverse_kl", float(gaps_N.sum()), len(gaps_N))
    tally.mean("distill/scored_frac", float((~teacher_N.isnan()).sum()), len(teacher_N))


def _scored(batch: Batch) -> Iterator[tuple[slice, Row, str]]:
    """Trained tokens, row and the beginning of the teacher's columns, of each row that one scored."""
    for number, row in enumerate(batch.rows):
        names = (name for name in row.columns if name.startswith(_PREFIX) and name.endswith(_LOGPROBS))
        if (name := next(names, None)) is not None:
            tokens = slice(int(batch.starts_R[number]), int(batch.starts_R[number + 1]))
            yield tokens, row, name.removesuffix(_LOGPROBS)
