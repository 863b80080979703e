"""Metrics of one micro-batch about its sampler: distance of the two policies, and effective sample size by lag."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from asyncrl.algorithms.corrections import largest
from asyncrl.algorithms.masking import LOG_RATIO_LIMIT, mean_pair
from asyncrl.algorithms.mismatch import mismatch, probability_difference
from asyncrl.trainer.micro_batch import MicroBatch
from asyncrl.trainer.tally import Tally

MAX_LAGS = 16
"""Lags that are measured one by one; larger ones are counted together with the last."""


def measure_mismatch(micro: MicroBatch, trainer_RS: Tensor, tally: Tally) -> None:
    """Compare the trainer's logprobs at the start of the step with the sampler's, over all tokens and by lag.

    Lag 0 measures the difference between the two engines alone; what larger lags add is staleness.
    """
    tally.take(*mismatch(trainer_RS, micro.sampler_RS, micro.mask_RS))
    tally.take(*probability_difference(trainer_RS, micro.sampler_RS, micro.mask_RS))
    log_ratio_RS = (trainer_RS - micro.sampler_RS).detach()
    finite_RS = micro.mask_RS & log_ratio_RS.isfinite()
    weights_RS = log_ratio_RS.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().double()
    # Of the ratios themselves: a correction's own extremes are those of its weights, cut at their bounds.
    tally.take(
        {},
        {
            "weights/raw_max": largest(weights_RS, finite_RS),
            "weights/raw_min": -largest(-weights_RS, finite_RS),
        },
    )
    for lag, lag_RS in _by_lag(micro):
        at_RS = finite_RS & lag_RS
        tally.take(
            {
                f"training/off_policy/lag_{lag}/kl": mean_pair(-log_ratio_RS, at_RS),
                f"training/off_policy/lag_{lag}/_weight": mean_pair(weights_RS, at_RS),
                f"training/off_policy/lag_{lag}/_square": mean_pair(weights_RS.square(), at_RS),
            }
        )


def measure_cuts(micro: MicroBatch, cuts: Mapping[str, Tensor | None], tally: Tally) -> None:
    """Shares of the tokens of each lag that something cuts: if they rise with the lag, staleness is what is cut.

    Args:
        cuts: name -> [R, S] bool, or None where there is no such thing.
    """
    for lag, lag_RS in _by_lag(micro):
        for name, cut_RS in cuts.items():
            if cut_RS is not None:
                tally.take({f"training/off_policy/lag_{lag}/{name}": mean_pair(cut_RS & lag_RS, lag_RS)})


def _by_lag(micro: MicroBatch) -> Iterator[tuple[int, Tensor]]:
    """Each lag of the micro-batch's tokens with where they are, [R, S] bool."""
    lags_RS = micro.lags_RS.clamp(max=MAX_LAGS)
    for lag in sorted({min(lag, MAX_LAGS) for lag in micro.lags}):
        yield lag, micro.mask_RS & (lags_RS == lag)
