"""Groups to arrays and micro-batches: what is trained, with which advantage, in which place."""

from functools import partial

import numpy as np
import pytest
import torch

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.advantages import group_relative, row_scores, spread
from asyncrl.algorithms.base import alone
from asyncrl.trainer.batch import build
from asyncrl.trainer.documents import Share
from asyncrl.trainer.joined import Joined
from asyncrl.trainer.measure import measure
from asyncrl.trainer.micro_batch import empty_micro_batch, micro_batches
from asyncrl.trainer.tally import Tally
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack

CPU = torch.device("cpu")


def row(prompt, answer, *, spans=None, mask=None, logprobs=None):
    """`mask` marks sampled tokens of the answer; without it all are."""
    mask = [True] * len(answer) if mask is None else mask
    full = np.array([False] * len(prompt) + mask)
    values = np.zeros(len(full), dtype=np.float32)
    values[full] = -0.5 if logprobs is None else logprobs
    return Row(
        token_ids=np.array(prompt + answer, dtype=np.uint32),
        mask=full,
        logprobs=values,
        spans=spans or (Span(pack(1, 0), 0, int(full.sum())),),
        num_prompt_tokens=len(prompt),
    )


def trajectory(*rows, reward=0.0):
    return Trajectory(rows=rows, reward=reward, reward_error=None if reward is not None else "timeout")


def group(ordinal, *trajectories):
    return Group(ordinal=ordinal, attempt=1, data_source="toy", trajectories=trajectories)


def reward_as_advantage(rewards, mask_BT, group_ids_B, *, total=alone):
    return spread(row_scores(rewards), mask_BT)


def built(groups, **changes):
    settings = {
        "filter_zero_variance": False,
        "lag_of": lambda version: 0,
        "max_lag": 8,
        **changes,
    }
    parts = settings.pop("mini_batches", [[g.ordinal for g in groups]])
    return build(groups, parts, **settings)


def advantages_of(batch, estimator):
    joined, facts = Joined.of(batch), batch.trajectories
    rewards, groups = torch.from_numpy(facts.rewards_J), torch.from_numpy(facts.group_J)
    return joined.pick(estimator(rewards, joined.sampled_JS, groups)).float()


def tokens_seen(batch, max_tokens=1000, mini=0, advantage=reward_as_advantage):
    """(row's ids before the token, token, sampler's logprob, advantage) of every trained token, from micro-batches."""
    packed, padded = (seen_in(batch, max_tokens, mini, advantage, is_packed=packed) for packed in (True, False))
    assert packed == padded
    return packed


def seen_in(batch, max_tokens, mini, advantage, *, is_packed):
    advantages_N = advantages_of(batch, advantage)
    seen = []
    for micro in micro_batches(batch, batch.rows_by_mini_batch[mini], max_tokens, CPU, is_packed=is_packed):
        ids, starts = micro.inputs.token_ids_RT.flatten(), micro.inputs.starts_R
        for n, place in enumerate(micro.predictors_M.tolist()):
            before = ids[starts[starts <= place][-1] : place + 1].tolist()
            slot = int(micro.slots_N[n])
            assert micro.mask_RS.flatten()[slot]
            seen.append(
                (
                    tuple(before),
                    int(micro.labels_N[n]),
                    round(float(micro.sampler_RS.flatten()[slot]), 4),
                    float(advantages_N[micro.index_N[n]]),
                )
            )
        assert int(micro.mask_RS.sum()) == len(micro.labels_N)
    return sorted(seen)


def test_every_sampled_token_is_predicted_from_the_tokens_before_it():
    batch = built([group(0, trajectory(row([5, 6], [7, 8], logprobs=[-0.25, -0.75]), reward=2.0))])
    assert tokens_seen(batch) == [((5, 6), 7, -0.25, 2.0), ((5, 6, 7), 8, -0.75, 2.0)]


def test_tokens_that_were_not_sampled_are_read_but_not_trained():
    turns = row([5], [7, 9, 9, 8], mask=[True, False, False, True])
    batch = built([group(0, trajectory(turns, reward=1.0))])
    assert [(before, token) for before, token, _, _ in tokens_seen(batch)] == [((5,), 7), ((5, 7, 9, 9), 8)]


def test_a_sampled_token_with_the_id_that_pads_is_trained_and_padding_is_not():
    """An end token that also pads is still what the policy said (B114)."""
    ended, longer = row([1], [5, 9, 0]), row([1], [6] * 9)
    batch = built([group(0, trajectory(ended), trajectory(longer))])
    trained = [token for _, token, _, _ in tokens_seen(batch)]
    assert sorted(trained) == [0, 5, *[6] * 9, 9]


def test_a_token_with_nothing_before_it_is_not_trained():
    batch = built([group(0, trajectory(row([], [7, 8]), reward=1.0))])
    assert [(before, token) for before, token, _, _ in tokens_seen(batch)] == [((7,), 8)]


def test_a_trajectory_of_several_rows_has_one_vote_and_one_advantage():
    two_rows = trajectory(row([5], [7]), row([6, 6], [8, 9]), reward=3.0)
    batch = built([group(0, two_rows, trajectory(row([5], [4]), reward=0.0))])
    by_token = {token: advantage for _, token, _, advantage in tokens_seen(batch, advantage=group_relative)}
    assert by_token[7] == by_token[8] == by_token[9] == -by_token[4]
    assert by_token[7] == pytest.approx(1 / np.sqrt(2), rel=1e-4)


def test_a_trajectory_without_a_reward_is_masked_and_left_out_of_the_baseline():
    batch = built(
        [
            group(
                0,
                trajectory(row([5], [1]), reward=1.0),
                trajectory(row([5], [2]), reward=None),
                trajectory(row([5], [3]), reward=0.0),
                trajectory(row([5], [4]), reward=0.0),
            )
        ]
    )
    centred = partial(group_relative, divide_by_std=False)
    assert {token: advantage for _, token, _, advantage in tokens_seen(batch, advantage=centred)} == {
        1: pytest.approx(2 / 3),
        3: pytest.approx(-1 / 3),
        4: pytest.approx(-1 / 3),
    }


def test_groups_with_one_prompt_are_compared_within_themselves_only():
    """Two rows of a data set may ask the same and have other truths: a group is its ordinal, not its text (B085)."""
    rewards = {0: [1.0, 0.0, 0.0, 0.0], 1: [0.0, 1.0, 1.0, 1.0]}
    batch = built(
        [
            group(ordinal, *(trajectory(row([5, 6], [7 + n]), reward=reward) for n, reward in enumerate(values)))
            for ordinal, values in rewards.items()
        ]
    )
    assert batch.trajectories.group_J.tolist() == [0] * 4 + [1] * 4
    advantages = advantages_of(batch, partial(group_relative, divide_by_std=False))
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25, -0.75, 0.25, 0.25, 0.25]


def test_groups_without_a_difference_in_reward_are_left_out_only_when_asked():
    groups = [
        group(3, trajectory(row([5], [1]), reward=0.1), trajectory(row([5], [2]), reward=0.1)),
        group(4, trajectory(row([5], [3]), reward=0.0), trajectory(row([5], [4]), reward=1.0)),
    ]
    kept = built(groups, filter_zero_variance=True)
    assert kept.zero_variance == built(groups).zero_variance == (3,)
    assert {token for _, token, _, _ in tokens_seen(kept)} == {3, 4}
    assert {token for _, token, _, _ in tokens_seen(built(groups))} == {1, 2, 3, 4}


@pytest.mark.parametrize("filtered", [True, False])
def test_the_share_of_groups_without_a_difference_is_told_whether_they_are_left_out_or_not(filtered):
    """Of the groups themselves, not of what an estimator divides by, nor of what a filter took (B081)."""
    rewards = {0: [1.0, 1.0, 1.0, 1.0], 1: [1.0, 0.0, 0.0, 0.0]}
    groups = [
        group(ordinal, *(trajectory(row([5], [7]), reward=reward) for reward in values))
        for ordinal, values in rewards.items()
    ]
    tally = Tally()
    measure(built(groups, filter_zero_variance=filtered), tally)
    assert tally.values()["training/zero_variance_frac"] == 0.5


def test_lags_follow_the_spans_and_tokens_past_the_limit_leave_the_loss():
    spans = (Span(pack(1, 1), 0, 2), Span(pack(1, 3), 0, 1))
    groups = [group(0, trajectory(row([5], [1, 2, 3], spans=spans), reward=2.0))]
    batch = built(groups, lag_of=lambda version: 4 - (version & 0xFF))
    assert batch.lags_N.tolist() == [3, 3, 1]
    fresh = built(groups, lag_of=lambda version: 4 - (version & 0xFF), max_lag=2)
    assert [token for _, token, _, _ in tokens_seen(fresh)] == [3]


@pytest.mark.parametrize("max_tokens", [1, 7, 16, 1000])
def test_the_same_tokens_come_whatever_the_budget(max_tokens):
    rng = np.random.default_rng(0)
    groups = [
        group(
            ordinal,
            *(
                trajectory(
                    row(rng.integers(2, 50, rng.integers(1, 5)).tolist(), rng.integers(2, 50, 1 + i).tolist()),
                    reward=float(i),
                )
                for i in range(3)
            ),
        )
        for ordinal in range(4)
    ]
    batch = built(groups)
    assert tokens_seen(batch, max_tokens) == tokens_seen(batch, 10**6)
    for is_packed in (True, False):
        for micro in micro_batches(batch, batch.rows_by_mini_batch[0], max_tokens, CPU, is_packed=is_packed):
            assert micro.inputs.token_ids_RT.numel() <= max_tokens or len(micro.inputs.rows_R) == 1


def test_mini_batches_split_by_whole_groups():
    groups = [group(o, trajectory(row([5], [10 + o]), reward=1.0)) for o in (2, 5, 7)]
    batch = built(groups, mini_batches=[[2, 5, 100], [7]])
    assert [token for _, token, _, _ in tokens_seen(batch, mini=0)] == [12, 15]
    assert [token for _, token, _, _ in tokens_seen(batch, mini=1)] == [17]


def test_a_rank_without_groups_has_an_empty_batch():
    batch = built([], mini_batches=[[1, 2]])
    assert batch.num_trained == len(advantages_of(batch, ALGORITHMS["grpo"].advantage)) == 0
    assert list(micro_batches(batch, batch.rows_by_mini_batch[0], 100, CPU, is_packed=True)) == []
    assert list(micro_batches(batch, batch.rows_by_mini_batch[0], 100, CPU, is_packed=False)) == []


def test_grid_places_values_and_passes_gradients():
    batch = built([group(0, trajectory(row([5], [1, 2]), reward=1.0), trajectory(row([5], [3]), reward=0.0))])
    (micro,) = micro_batches(batch, batch.rows_by_mini_batch[0], 100, CPU, is_packed=True)
    values = torch.arange(1.0, 4.0, requires_grad=True)
    grid = micro.grid(values)
    assert grid.shape == micro.mask_RS.shape
    assert grid[~micro.mask_RS].sum() == 0
    (grid * 2).sum().backward()
    assert values.grad.tolist() == [2.0, 2.0, 2.0]


def test_the_empty_micro_batch_trains_no_token():
    assert all(int(empty_micro_batch(CPU, is_packed=packed).mask_RS.sum()) == 0 for packed in (True, False))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("max_tokens", [1, 9, 1000])
def test_ranks_that_share_a_row_predict_every_token_once(size, max_tokens):
    groups = [group(0, *(trajectory(row([5] * n, list(range(10, 11 + n))), reward=1.0) for n in (1, 4, 2)))]
    batch = built(groups)
    rows = batch.rows_by_mini_batch[0]
    whole = list(micro_batches(batch, rows, max_tokens, CPU, is_packed=True))
    shares = [Share(None, rank, size) for rank in range(size)]
    parts = [list(micro_batches(batch, rows, max_tokens, CPU, is_packed=True, share=share)) for share in shares]
    for number, micro in enumerate(whole):
        mine = [part[number] for part in parts]
        assert len({part.inputs.token_ids_RT.shape for part in mine}) == 1
        assert torch.equal(
            torch.cat([part.predicted_M for part in mine]).sort().values, torch.arange(len(micro.labels_N))
        )
        for part in mine:
            read, places = part.inputs, part.predictors_M
            assert torch.equal(read.token_ids_RT[0, places], micro.inputs.token_ids_RT[0, part.own(micro.predictors_M)])
            assert torch.equal(read.positions_RT[0, places], micro.inputs.positions_RT[0, part.own(micro.predictors_M)])
            assert torch.equal(part.slots_N, micro.slots_N)
            assert torch.equal(part.mask_RS, micro.mask_RS)


@pytest.mark.parametrize("size", [2, 3])
def test_the_empty_micro_batch_of_ranks_that_share_a_row_has_one_predictor(size):
    parts = [empty_micro_batch(CPU, is_packed=True, share=Share(None, rank, size)) for rank in range(size)]
    assert [len(part.predicted_M) for part in parts] == [1] + [0] * (size - 1)
    assert {part.inputs.token_ids_RT.shape for part in parts} == {(1, 2)}


def test_answers_cut_at_the_length_limit_leave_the_loss_only_when_asked():
    cut = Trajectory(rows=(row([5], [1, 2]),), reward=1.0, reward_error=None, finish_reason="length")
    groups = [group(0, cut, trajectory(row([5], [3]), reward=0.0))]
    batch = built(groups, filter_overlong=True)
    assert batch.masked == {("overlong", "toy"): 2}
    # Its reward stays in the baseline of the other one.
    assert tokens_seen(batch, advantage=partial(group_relative, divide_by_std=False)) == [((5,), 3, -0.5, -0.5)]
    assert built(groups).num_trained == 3


def test_what_is_known_of_trained_tokens_finds_its_place_among_the_sampled_ones():
    spans = (Span(pack(1, 1), 0, 2), Span(pack(1, 3), 0, 1))
    groups = [group(0, trajectory(row([5], [1, 2, 3], spans=spans)), trajectory(row([5], [4]), row([6], [7])))]
    batch = built(groups, lag_of=lambda version: 0 if version == pack(1, 3) or version == pack(1, 0) else 9)
    joined = Joined.of(batch)
    assert joined.sampled_JS.tolist() == [[True, True, True], [True, True, False]]
    placed = joined.place(torch.tensor([1.0, 2.0, 3.0]))
    assert placed.tolist() == [[0.0, 0.0, 1.0], [2.0, 3.0, 0.0]]
    assert joined.pick(placed).tolist() == [1.0, 2.0, 3.0]
    assert batch.trajectories.num_response_J.tolist() == [3, 2]
