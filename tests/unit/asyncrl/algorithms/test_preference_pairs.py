"""Preference losses in the loop: which rows are compared, and that a step's gradient is that of the plain pair loss."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.algorithms.aggregation import aggregate
from asyncrl.algorithms.losses import reinforce
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.preference import PairKind, pair_loss
from asyncrl.algorithms.preference_pairs import (
    measure_pairs,
    pair_gradient,
    pairs_of,
    self_play_gradient,
    win_probability_gradient,
)

NAN = torch.nan
SCORES = [3.0, 1.0, 2.0, 1.0, 0.5, 0.5, NAN, 4.0, 2.0, 2.0]
GROUPS = [7, 7, 7, 7, -1, -1, -1, 0, 3, 3]
"""7: best row 0, worst 1 and 3. -1: a tie beside a row without a score. 0: alone. 3: a tie."""


@dataclass(frozen=True)
class Rows:
    """A batch in which group 7 alone has something to compare, and so does group 9, on rows 10 and 11."""

    scores: Tensor
    groups: Tensor
    mask: Tensor
    logprobs: Tensor
    other: Tensor


def rows() -> Rows:
    rng = torch.Generator().manual_seed(3)
    scores, groups = torch.tensor([*SCORES, 1.0, 0.0]), torch.tensor([*GROUPS, 9, 9])
    mask = torch.rand(len(scores), 6, generator=rng) < 0.7
    mask[:, 0] = True
    logprobs = -3 * torch.rand(mask.shape, generator=rng)
    return Rows(scores, groups, mask, logprobs, logprobs + 0.4 * torch.randn(mask.shape, generator=rng))


def step_gradient(advantages: Tensor, batch: Rows, parts: list[list[int]]) -> Tensor:
    """What the trainer adds up in a step: `reinforce` summed over tokens, over ranks of one micro-batch each."""
    gradients = []
    for part in parts:
        leaf = batch.logprobs.clone().requires_grad_()
        mask = batch.mask[part]
        loss = reinforce(leaf[part], batch.logprobs[part], advantages[part], mask)
        aggregate(loss.loss_BT, mask, "token-sum", global_tokens=None, global_seqs=None, dp_size=len(parts)).backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    return torch.stack(gradients).mean(dim=0)


def plain_gradient(loss: Callable[[Tensor], Tensor], batch: Rows) -> Tensor:
    """Autograd of a loss of row sums, in float64, as the design page writes it."""
    leaf = batch.logprobs.double().requires_grad_()
    loss((torch.where(batch.mask, leaf - batch.other.double(), 0.0)).sum(dim=1)).backward()
    assert leaf.grad is not None
    return leaf.grad.float()


def mean_pair_loss(ratios: Tensor, kind: PairKind, beta: float) -> Tensor:
    zero = torch.zeros(1)

    def of(chosen: int, rejected: int) -> Tensor:
        return pair_loss(ratios[[chosen]], ratios[[rejected]], zero, zero, kind=kind, beta=beta).losses_P.sum()

    return ((of(0, 1) + of(0, 3)) / 2 + of(10, 11)) / 2


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "hinge", "sppo_hard"])
@pytest.mark.parametrize("parts", [[list(range(12))], [[0, 4, 5, 11], [1, 2, 3, 6, 7, 8, 9, 10], []]])
def test_a_step_on_pairs_is_a_step_on_the_plain_pair_loss(kind: PairKind, parts: list[list[int]]) -> None:
    batch = rows()
    columns = {"logprobs_BT": batch.logprobs, "reference_BT": batch.other}
    with torch.no_grad():
        advantages = pair_gradient(batch.scores, batch.mask, batch.groups, kind=kind, beta=0.3, **columns)
    expected = plain_gradient(partial(mean_pair_loss, kind=kind, beta=0.3), batch)
    assert expected.abs().sum() > 0
    torch.testing.assert_close(step_gradient(advantages, batch, parts), expected, rtol=1e-5, atol=1e-7)


def test_self_play_compares_with_the_policy_that_sampled() -> None:
    batch = rows()
    columns = {"logprobs_BT": batch.logprobs, "sampler_BT": batch.other}
    advantages = self_play_gradient(batch.scores, batch.mask, batch.groups, beta=0.3, **columns)
    expected = plain_gradient(partial(mean_pair_loss, kind="sigmoid", beta=0.3), batch)
    torch.testing.assert_close(step_gradient(advantages, batch, [list(range(12))]), expected, rtol=1e-5, atol=1e-7)


def test_a_step_on_win_probabilities_is_a_step_on_their_plain_loss() -> None:
    batch = rows()
    columns = {"logprobs_BT": batch.logprobs, "sampler_BT": batch.other}
    advantages = win_probability_gradient(batch.scores, batch.mask, batch.groups, eta=2.0, **columns)
    wins = torch.tensor([1.0, 1 / 6, 2 / 3, 1 / 6, 1.0, 0.0], dtype=torch.float64)

    def loss(ratios: Tensor) -> Tensor:
        return (ratios[[0, 1, 2, 3, 10, 11]] - 2.0 * (wins - 0.5)).square().mean()

    expected = plain_gradient(loss, batch)
    torch.testing.assert_close(step_gradient(advantages, batch, [list(range(12))]), expected, rtol=1e-5, atol=1e-7)


def test_the_mean_is_over_the_pairs_of_all_ranks() -> None:
    batch = rows()
    columns = {"logprobs_BT": batch.logprobs, "reference_BT": batch.other}
    alone = pair_gradient(batch.scores, batch.mask, batch.groups, **columns)
    shared = pair_gradient(batch.scores, batch.mask, batch.groups, **columns, total=lambda values: values + 6)
    torch.testing.assert_close(shared * (2 + 6), alone * 2)


@pytest.mark.parametrize("spoilt", [NAN, torch.inf, -torch.inf])
def test_a_row_that_cannot_be_compared_leaves_its_place_to_the_next_best(spoilt: float) -> None:
    batch = rows()
    batch.logprobs[0, 0] = spoilt
    batch.mask[11] = False
    columns = {"logprobs_BT": batch.logprobs, "reference_BT": batch.other}
    advantages = pair_gradient(batch.scores, batch.mask, batch.groups, **columns)
    spoilt_BT = torch.zeros_like(batch.mask)
    spoilt_BT[0, 0] = True
    assert torch.equal(~advantages.isfinite(), spoilt_BT), "the loss is to count it"
    advantages = advantages.nan_to_num(0.0)
    trained = {i for i in range(12) if advantages[i].abs().sum() > 0}
    assert trained == {1, 2, 3}, "row 2 is the best that is left of group 7, and row 10 has nobody left"


@seed(0)
@settings(max_examples=150, deadline=None, database=None)
@given(
    played=st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, NAN]), st.integers(0, 3)), max_size=12),
    turn=st.integers(0, 11),
)
def test_each_best_row_meets_each_worst_one_and_a_group_weighs_one(played: list[tuple[float, int]], turn: int) -> None:
    turned = played[turn % max(len(played), 1) :] + played[: turn % max(len(played), 1)]
    scores = torch.tensor([score for score, _ in turned], dtype=torch.float64)
    pairs = pairs_of(scores, torch.tensor([group for _, group in turned], dtype=torch.int64))
    expected, ties = {}, 0
    for group in range(4):
        known = [i for i, (score, of) in enumerate(turned) if of == group and score == score]
        best, worst = (edge((turned[i][0] for i in known), default=0.0) for edge in (max, min))
        if best == worst:
            ties += len(known) > 1
            continue
        tops, bottoms = ([i for i in known if turned[i][0] == edge] for edge in (best, worst))
        expected |= {pair: 1 / (len(tops) * len(bottoms)) for pair in product(tops, bottoms)}
    places = zip(pairs.chosen_P.tolist(), pairs.rejected_P.tolist(), strict=True)
    assert dict(zip(places, pairs.weights_P.tolist(), strict=True)) == expected
    assert float(pairs.num_tied) == ties
    assert float(pairs.num_compared) == pytest.approx(sum(expected.values()))


def test_the_measures_say_how_far_the_policy_prefers_what_scores_better() -> None:
    mask = torch.ones(6, 1, dtype=torch.bool)
    logprobs, reference = torch.tensor([[4.0], [1.0], [0.0], [2.0], [9.0], [9.0]]), torch.zeros(6, 1)
    values = finish(
        measure_pairs(
            torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
            mask,
            torch.tensor([0, 0, 1, 1, 2, 2]),
            beta=0.5,
            logprobs_BT=logprobs,
            reference_BT=reference,
        )
    )
    assert values == {
        "pref/chosen_reward": 1.0,
        "pref/rejected_reward": 0.75,
        "pref/margin": 0.25,
        "pref/accuracy": 0.5,
        "pref/tie_frac": pytest.approx(1 / 3),
    }
