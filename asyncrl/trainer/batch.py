"""Groups to arrays: the trained tokens of a step, cut into micro-batches by token budget, whatever the cut.

_R rows, _J trajectories, _M sampled tokens in the order group, trajectory, row, position, _N those that are trained;
RS is a micro-batch's grid of rows by trained tokens. Nothing here loops over tokens in Python.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward pass, padded on the right, and their trained tokens."""

    token_ids_RT: Tensor
    predictors_N: Tensor
    """[N] int64, place of the token before each trained token in token_ids_RT, flattened."""
    labels_N: Tensor
    slots_N: Tensor
    """[N] int64, place of each trained token in the grid, flattened."""
    index_N: Ints
    """Place of each trained token in the batch's arrays."""
    mask_RS: Tensor
    sampler_RS: Tensor
    lags_RS: Tensor
    lags: tuple[int, ...]
    """Those in `lags_RS`, each once, ascending: the device need not be asked which there are."""
    sources: tuple[str, ...]
    source_N: Tensor
    """[N] int64, index of each trained token's source in `sources`."""

    def grid(self, values_N: Tensor) -> Tensor:
        """[R, S] the tokens' values in their places, 0 elsewhere; the gradient flows through."""
        flat = values_N.new_zeros(self.mask_RS.numel())
        return flat.index_copy(0, self.slots_N, values_N).view(self.mask_RS.shape)


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


def micro_batches(batch: Batch, rows: Ints, max_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
    """The given rows, those of like length together, in micro-batches of at most `max_tokens` padded tokens.

    A row that is longer by itself is a micro-batch of its own.
    """
    # The last trained token of a row is predicted, never read, so the row ends before it.
    lengths = batch.positions_N[batch.starts_R[rows + 1] - 1]
    order = np.lexsort((rows, -lengths))
    rows, lengths = rows[order], lengths[order]
    start = 0
    while start < len(rows):
        size = max(max_tokens // int(lengths[start]), 1)
        yield _micro_batch(batch, rows[start : start + size], lengths[start : start + size], device)
        start += size


def empty_micro_batch(device: torch.device) -> MicroBatch:
    """One token that is not trained: for a rank that has fewer micro-batches than another.

    Ranks that share parameters gather them together, so each runs as many passes as the others.
    """
    zero = torch.zeros(1, 1, device=device)
    return MicroBatch(
        token_ids_RT=torch.zeros(1, 1, dtype=torch.int64, device=device),
        predictors_N=torch.zeros(1, dtype=torch.int64, device=device),
        labels_N=torch.zeros(1, dtype=torch.int64, device=device),
        slots_N=torch.zeros(1, dtype=torch.int64, device=device),
        index_N=np.zeros(0, dtype=np.int64),
        mask_RS=torch.zeros(1, 1, dtype=torch.bool, device=device),
        sampler_RS=zero,
        lags_RS=torch.zeros(1, 1, dtype=torch.int64, device=device),
        lags=(),
        sources=(),
        source_N=torch.zeros(1, dtype=torch.int64, device=device),
    )


def _micro_batch(batch: Batch, rows: Ints, lengths: Ints, device: torch.device) -> MicroBatch:
    width = int(lengths[0])
    token_ids_RT = np.zeros((len(rows), width), dtype=np.int64)
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        token_ids_RT[place, :length] = batch.rows[row].token_ids[:length]
    counts_R = batch.starts_R[rows + 1] - batch.starts_R[rows]
    place_N = np.repeat(np.arange(len(rows)), counts_R)
    within_N = np.arange(int(counts_R.sum())) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
    index_N = batch.starts_R[rows][place_N] + within_N
    shape = (len(rows), int(counts_R.max()))
    slots_N = place_N * shape[1] + within_N

    def grid(values_N: npt.NDArray[np.generic]) -> Tensor:
        filled = np.zeros(shape, dtype=values_N.dtype)
        filled.reshape(-1)[slots_N] = values_N
        return torch.from_numpy(filled).to(device)

    return MicroBatch(
        token_ids_RT=torch.from_numpy(token_ids_RT).to(device),
        predictors_N=torch.from_numpy(place_N * width + batch.positions_N[index_N] - 1).to(device),
        labels_N=torch.from_numpy(batch.labels_N[index_N]).to(device),
        slots_N=torch.from_numpy(slots_N).to(device),
        index_N=index_N,
        mask_RS=grid(np.ones(len(index_N), dtype=np.bool_)),
        sampler_RS=grid(batch.sampler_N[index_N]),
        lags_RS=grid(batch.lags_N[index_N]),
        lags=tuple(np.unique(batch.lags_N[index_N]).tolist()),
        sources=batch.sources,
        source_N=torch.from_numpy(batch.source_N[index_N]).to(device),
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
