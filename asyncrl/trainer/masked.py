"""Sampled tokens that a step keeps out of the policy loss, by reason and data source; the token ledger is told of them.

    past_limit      older than the limit (staleness.on_stale: mask); their rewards stay in the baseline
    baseline        of a greedy answer, which is played for its reward
    no_reward       of a trajectory without a reward
    no_baseline     of a group without a reward of a greedy answer, where the advantages are measured from it
    zero_variance   of a group whose rewards do not differ (algorithm.filter_zero_variance)
    overlong        of an answer that was cut at the length limit (algorithm.filter_overlong)
    first_token     nothing before it predicts it
    rejected        correction or selection gave it weight 0: the two policies disagree too much

A token has the first reason that applies, so the counts of a step add up. A rejected token is trained by the KL and
entropy terms, if there are any.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.trainer.tally import Tally

PREFIX = "training/masked_tokens/"
REJECTED = "rejected"

Masked = Mapping[tuple[str, str], int]
"""(reason, data source) -> sampled tokens."""


def name_of(reason: str, source: str) -> str:
    """The metric that counts these tokens."""
    return f"{PREFIX}{reason}/{source}"


def masked_tokens(
    reasons: Mapping[str, npt.NDArray[np.bool_]], source_N: npt.NDArray[np.int64], sources: Sequence[str]
) -> Masked:
    """Count sampled tokens by the first reason that applies and by source; those with none of them are trained on.

    Args:
        reasons: name -> [N] bool, whether it applies to each sampled token; in order of precedence.
        source_N: index of each token's source in `sources`.
    """
    open_N = np.ones(len(source_N), dtype=np.bool_)
    counts: dict[tuple[str, str], int] = {}
    for reason, applies_N in reasons.items():
        by_source = np.bincount(source_N[open_N & applies_N], minlength=len(sources))
        counts |= {(reason, sources[i]): int(n) for i, n in enumerate(by_source) if n}
        open_N &= ~applies_N
    return counts


def count_rejected(
    rejected_RS: Tensor | None, slots_N: Tensor, source_N: Tensor, tally: Tally, names: Sequence[str]
) -> None:
    """Count the tokens of a micro-batch that correction or selection leaves out of the policy loss.

    Args:
        rejected_RS: [R, S] bool; None: none.
        slots_N: place of each trained token in the micro-batch's grid, flattened.
        source_N: index of each one's data source in `names`.
    """
    if rejected_RS is None or not names:
        return
    counts = torch.bincount(source_N[rejected_RS.flatten()[slots_N]], minlength=len(names))
    tally.take_counts({name_of(REJECTED, source): counts[i] for i, source in enumerate(names)})


def by_source(values: Mapping[str, float]) -> dict[str, int]:
    """Masked tokens by data source, of a step's metrics."""
    counts: dict[str, int] = defaultdict(int)
    for name, number in values.items():
        if name.startswith(PREFIX) and number:
            counts[name.removeprefix(PREFIX).partition("/")[2]] += round(number)
    return dict(counts)
