"""Preference losses: against hand-worked numbers, their own definitions, and numerical gradients."""

import math

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from asyncrl.algorithms.preference import (
    PairKind,
    log_ratios,
    pair_loss,
    win_probabilities,
    win_probability_loss,
)

KINDS: tuple[PairKind, ...] = ("sigmoid", "ipo", "hinge", "sppo_hard")


def losses(kind: PairKind, a: float, b: float, *, beta: float, label_smoothing: float = 0.0) -> float:
    """Of one pair with the log ratios a and b."""
    one, zero = torch.ones(1), torch.zeros(1)
    result = pair_loss(one * a, one * b, zero, zero, kind=kind, beta=beta, label_smoothing=label_smoothing)
    return float(result.losses_P)


def test_a_pair_has_the_loss_worked_out_by_hand() -> None:
    assert losses("ipo", 3.0, 1.0, beta=0.5) == (2 - 1) ** 2
    assert losses("ipo", 3.0, 1.0, beta=0.1) == pytest.approx((2 - 5) ** 2)
    assert losses("hinge", 3.0, 1.0, beta=0.25) == 0.5
    assert losses("hinge", 9.0, 1.0, beta=0.25) == 0.0
    assert losses("sppo_hard", 3.0, 1.0, beta=0.5) == (3 - 1) ** 2 + (1 + 1) ** 2
    assert losses("sigmoid", 0.0, 0.0, beta=0.3) == pytest.approx(math.log(2))
    assert losses("sigmoid", 2.0, 0.0, beta=1.0, label_smoothing=0.1) == pytest.approx(
        0.9 * math.log1p(math.exp(-2)) + 0.1 * math.log1p(math.exp(2))
    )


@pytest.mark.parametrize("gap", [1e4, -1e4])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_worlds_apart_have_a_finite_loss_and_gradient(kind: PairKind, gap: float) -> None:
    chosen = torch.tensor([gap], requires_grad=True)
    pairs = pair_loss(chosen, torch.zeros(1), torch.zeros(1), torch.zeros(1), kind=kind, beta=0.5)
    pairs.losses_P.sum().backward()
    assert pairs.losses_P.isfinite().all()
    assert chosen.grad is not None
    assert chosen.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences_and_the_reference_has_none(kind: PairKind) -> None:
    rng = torch.Generator().manual_seed(0)
    policy = [torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    reference = [torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def of_policy(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return pair_loss(chosen, rejected, *reference, kind=kind, beta=0.7).losses_P

    assert torch.autograd.gradcheck(of_policy, policy)
    pairs = pair_loss(*policy, *reference, kind=kind, beta=0.7)
    pairs.losses_P.sum().backward()
    assert all(one.grad is None for one in reference)
    assert not pairs.chosen_rewards_P.requires_grad
    assert not pairs.rejected_rewards_P.requires_grad


def test_row_sums_keep_a_difference_that_float32_sums_would_lose() -> None:
    reference = torch.full((1, 4096), -1234.5)
    logprobs = reference.clone()
    logprobs[0, 7] += 2.0**-13
    assert float(log_ratios(logprobs, reference, torch.ones(1, 4096, dtype=torch.bool))) == 2.0**-13


def test_masked_tokens_have_no_part_in_a_row_and_no_gradient() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    logprobs = torch.tensor([[-1.0, torch.nan, -2.0], [torch.nan, torch.inf, 0.0]], requires_grad=True)
    ratios = log_ratios(logprobs, torch.tensor([[0.5, torch.nan, 0.0], [0.0, torch.nan, 1.0]]), mask)
    ratios.sum().backward()
    assert ratios.tolist() == [-3.5, 0.0]
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, mask.float())


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="beta = 0"):
        losses("sigmoid", 0.0, 0.0, beta=0.0)
    with pytest.raises(ValueError, match=r"label_smoothing = 0.1 .*only sigmoid"):
        losses("ipo", 0.0, 0.0, beta=0.1, label_smoothing=0.1)
    with pytest.raises(ValueError, match="kind = 'dpo'"):
        losses("dpo", 0.0, 0.0, beta=0.1)  # type: ignore[arg-type]  # what a table without type checks may hold


def test_a_win_probability_is_a_target_of_the_log_ratio() -> None:
    ratios = torch.tensor([1.0, -1.0, 0.0], requires_grad=True)
    loss = win_probability_loss(ratios, torch.tensor([0.75, 1.0, 0.5]), eta=4.0)
    loss.sum().backward()
    assert loss.tolist() == [0.0, 9.0, 0.0]
    assert ratios.grad is not None
    assert ratios.grad.tolist() == [0.0, -6.0, 0.0]
    assert win_probability_loss(ratios, torch.tensor([0.25, 0.5, 0.0]), eta=4.0, center=0.0).tolist() == [0.0, 9.0, 0.0]


@seed(0)
@settings(max_examples=100, deadline=None, database=None)
@given(rows=st.lists(st.tuples(st.sampled_from([-2.0, 0.0, 0.1, 1.0]), st.integers(-2, 2)), max_size=12))
def test_a_row_wins_against_each_sibling_with_a_lower_score_and_half_against_an_equal_one(
    rows: list[tuple[float, int]],
) -> None:
    scores = torch.tensor([score for score, _ in rows], dtype=torch.float64)
    groups = torch.tensor([group for _, group in rows], dtype=torch.int64)
    got = win_probabilities(scores, groups)
    for i, (score, group) in enumerate(rows):
        others = [other for j, (other, of) in enumerate(rows) if of == group and j != i]
        if not others:
            assert got[i].isnan()
            continue
        wins = sum(score > other for other in others) + sum(score == other for other in others) / 2
        assert float(got[i]) == pytest.approx(wins / len(others))
