"""Groups to arrays: the trained tokens of a step, whatever it is cut into (micro_batch.py).

_R rows, _J trajectories, _M sampled tokens in the order group, trajectory, row, position, _N those that are trained.
Nothing here loops over tokens in Python.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asyncrl.algorithms.rewards import zero_variance
from asyncrl.trainer.baselines import part
from asyncrl.trainer.masked import Masked, masked_tokens
from buffer import Group, Row, Trajectory

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trajectories:
    """The trajectories of a rank's groups, J of them, trained on or not."""

    rewards_J: npt.NDArray[np.float64]
    """NaN where there is no reward."""
    group_J: Ints
    """Index of each one's group among the rank's groups."""
    num_sampled_J: Ints
    """Tokens that the policy sampled."""
    num_response_J: Ints
    """Tokens after the prompt, sampled or not."""
    baselines_J: npt.NDArray[np.float64]
    """Reward of the greedy answer to the same prompt; NaN where there is none."""


@dataclass(frozen=True)
class Batch:
    """What one rank trains in one step."""

    groups: tuple[Group, ...]
    """Without their greedy answers."""
    trajectories: Trajectories
    zero_variance: tuple[int, ...]
    """Ordinals of groups whose rewards do not differ, left out of the loss or not."""
    rows: tuple[Row, ...]
    rows_by_mini_batch: tuple[Ints, ...]
    """Rows that have trained tokens, by optimizer step of one pass."""
    starts_R: Ints
    """[R + 1] the tokens of row r are those from starts_R[r] up to starts_R[r + 1]."""
    positions_N: Ints
    """Position of the token in its row, at least 1: the first token of a row has nothing that predicts it."""
    labels_N: Ints
    sampler_N: Floats
    """Logprobs, nats, that were recorded when the token was sampled."""
    lags_N: Ints
    """Versions between the one that sampled the token and the one that is trained."""
    sources: tuple[str, ...]
    """Data sources of the groups, each once."""
    source_N: Ints
    """Index of the token's source in `sources`."""
    masked: Masked
    """Sampled tokens that do not enter the loss."""
    trained_M: Bools
    """Which of the M sampled tokens are trained, in the order of the trained ones."""

    @property
    def num_trained(self) -> int:
        """Tokens that enter the loss."""
        return len(self.labels_N)


def build(
    groups: Sequence[Group],
    mini_batches: Sequence[Sequence[int]],
    *,
    filter_zero_variance: bool,
    filter_overlong: bool = False,
    needs_baseline: bool = False,
    lag_of: Callable[[int], int],
    max_lag: int,
) -> Batch:
    """Arrays of a rank's whole groups.

    Args:
        groups: in ordinal order.
        mini_batches: ordinals of each optimizer step of one pass; others than the rank's own may be among them.
        filter_zero_variance: leave groups without a difference in reward out of the loss.
        filter_overlong: leave answers that were cut at the length limit out of the loss.
        needs_baseline: leave trajectories out of the loss whose group has no reward of a greedy answer.
        lag_of: versions between a packed version and the one that is trained.
        max_lag: tokens of a larger lag leave the loss; their rewards stay in the baseline.
    """
    parted = part(groups)
    groups = parted.groups
    members = [trajectory for group in groups for trajectory in group.trajectories]
    sizes = [len(group.trajectories) for group in groups]
    rows = tuple(row for trajectory in members for row in trajectory.rows)
    trajectories = Trajectories(
        rewards_J=np.array([np.nan if t.reward is None else t.reward for t in members], dtype=np.float64),
        group_J=np.repeat(np.arange(len(groups)), sizes),
        num_sampled_J=np.array([t.num_sampled for t in members], dtype=np.int64),
        num_response_J=np.array(
            [sum(len(row.token_ids) - row.num_prompt_tokens for row in t.rows) for t in members], dtype=np.int64
        ),
        baselines_J=np.repeat(parted.rewards_G, sizes),
    )
    equal = _zero_variance(groups)
    lengths_R = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
    sampled_R = np.array([row.num_sampled for row in rows], dtype=np.int64)
    row_J = np.array([len(t.rows) for t in members], dtype=np.int64)

    flat_N = np.flatnonzero(_concatenate([row.mask for row in rows], np.bool_))
    row_N = np.repeat(np.arange(len(rows)), sampled_R)
    positions_N = flat_N - (np.cumsum(lengths_R) - lengths_R)[row_N]
    lags_N = _lags(rows, lag_of)
    sources = tuple(sorted({group.data_source for group in groups}))
    source_J = np.array([sources.index(g.data_source) for g in groups], dtype=np.int64)[trajectories.group_J]
    source_N = np.repeat(source_J, trajectories.num_sampled_J)
    equal_J = np.isin(trajectories.group_J, [i for i, group in enumerate(groups) if group.ordinal in equal])
    out_of_loss = {
        "past_limit": lags_N > max_lag,
        "no_reward": np.repeat(~np.isfinite(trajectories.rewards_J), trajectories.num_sampled_J),
        "no_baseline": np.repeat(needs_baseline & np.isnan(trajectories.baselines_J), trajectories.num_sampled_J),
        "zero_variance": np.repeat(filter_zero_variance & equal_J, trajectories.num_sampled_J),
        "overlong": np.repeat(filter_overlong & _cut(members), trajectories.num_sampled_J),
        "first_token": positions_N < 1,
    }
    trained_N = ~np.logical_or.reduce(list(out_of_loss.values()))
    counts_R = np.bincount(row_N[trained_N], minlength=len(rows))
    ordinal_R = np.repeat(np.array([g.ordinal for g in groups], dtype=np.int64)[trajectories.group_J], row_J)
    return Batch(
        groups=groups,
        trajectories=trajectories,
        zero_variance=equal,
        rows=rows,
        rows_by_mini_batch=tuple(np.flatnonzero(np.isin(ordinal_R, part) & (counts_R > 0)) for part in mini_batches),
        starts_R=np.concatenate([[0], np.cumsum(counts_R)]).astype(np.int64),
        positions_N=positions_N[trained_N],
        labels_N=_concatenate([row.token_ids for row in rows], np.uint32)[flat_N][trained_N].astype(np.int64),
        sampler_N=_concatenate([row.logprobs for row in rows], np.float32)[flat_N][trained_N].astype(np.float32),
        lags_N=lags_N[trained_N],
        sources=sources,
        source_N=source_N[trained_N],
        masked={**masked_tokens(out_of_loss, source_N, sources), **parted.masked},
        trained_M=trained_N,
    )


def _zero_variance(groups: Sequence[Group]) -> tuple[int, ...]:
    scores: Mapping[int, list[float | None]] = {
        group.ordinal: [trajectory.reward for trajectory in group.trajectories] for group in groups
    }
    return zero_variance(scores).dropped


def _lags(rows: Sequence[Row], lag_of: Callable[[int], int]) -> Ints:
    spans = [span for row in rows for span in row.spans]
    by_version = {version: lag_of(version) for version in {span.version for span in spans}}
    lags = np.array([by_version[span.version] for span in spans], dtype=np.int64)
    return np.repeat(lags, [span.num_tokens for span in spans])


def _cut(members: Sequence[Trajectory]) -> Bools:
    return np.array([trajectory.finish_reason == "length" for trajectory in members], dtype=np.bool_)


def _concatenate(parts: Sequence[npt.NDArray[np.generic]], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
