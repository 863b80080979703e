"""What teachers said of the trained tokens of a batch: columns of its rows, written when the tokens were sampled."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.trainer.batch import Batch
from asyncrl.trainer.tally import Tally
from buffer import Row

_PREFIX, _SUFFIX = "teacher/", "/logprobs"


def needs_teacher(algorithm: Algorithm) -> bool:
    """Whether anything in the algorithm compares with a teacher."""
    return algorithm.distill_coef > 0 or "teacher_BT" in algorithm.columns


def require_teachers(algorithm: Algorithm, names: Sequence[str]) -> None:
    """Refuse a run whose algorithm learns from a teacher and has none: every advantage would be 0.

    Raises:
        ConfigError: there is none among `names`.
    """
    if needs_teacher(algorithm) and not names:
        raise ConfigError(
            f"algorithm.name = {algorithm.name!r} with algorithm.distill_coef = {algorithm.distill_coef} learns from a "
            "teacher, but teachers is empty: nothing would be learned from it. List one under teachers."
        )


def teacher_logprobs(batch: Batch) -> Tensor:
    """[N] float32, nats, of the trained tokens by the first teacher of the run that scored their row; NaN without one.

    The columns of a row stand in the order of the configuration.
    """
    values_N = np.full(batch.num_trained, np.nan, dtype=np.float32)
    for number, row in enumerate(batch.rows):
        name = _first_column(row)
        if name is not None:
            tokens = slice(batch.starts_R[number], batch.starts_R[number + 1])
            values_N[tokens] = row.columns[name][batch.positions_N[tokens]]
    return torch.from_numpy(values_N)


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


def _first_column(row: Row) -> str | None:
    names = (name for name in row.columns if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
    return next(names, None)
