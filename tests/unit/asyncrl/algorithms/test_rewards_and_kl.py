"""Rewards before advantages, KL controllers and estimators, and the age of tokens."""

import pytest
import torch

from asyncrl.algorithms.kl import KL_ESTIMATORS, KLController, kl_estimate, kl_full
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.rewards import overlong_penalty, subtract_kl, without_overlong, zero_variance
from asyncrl.algorithms.staleness import lag_metrics, proximal_logprobs
from asyncrl.algorithms.whitening import whiten

NAN = float("nan")


def test_members_without_a_score_neither_make_nor_hide_a_difference() -> None:
    found = zero_variance({1: [1.0, None, 1.0], 2: [0.0, NAN, 1.0], 3: [None, 1.0], 4: [None, None], 5: []})
    assert found.dropped == (1,)
    assert found.counts_by_value == {1.0: 1}


def test_equal_rewards_that_no_float_holds_exactly_are_equal() -> None:
    found = zero_variance({"a": [0.1] * 3, "b": [0.1, 0.1, 0.2]})
    assert found.dropped == ("a",)


def test_a_response_beyond_the_limit_gets_the_full_penalty_and_no_more() -> None:
    lengths = torch.tensor([0, 16384, 18432, 20480, 50000])
    penalty = overlong_penalty(lengths, max_length=20480, buffer=4096)
    assert penalty.tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]


@pytest.mark.parametrize("buffer", [0, 11])
def test_an_overlong_buffer_out_of_range_is_refused(buffer: int) -> None:
    with pytest.raises(ValueError, match=f"overlong buffer = {buffer} .*max_length = 10"):
        overlong_penalty(torch.tensor([1]), max_length=10, buffer=buffer)


def test_overlong_filtering_empties_the_rows_that_were_cut() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    assert without_overlong(mask, torch.tensor([True, False])).tolist() == [[False, False], [True, False]]


def test_a_kl_that_is_not_finite_takes_nothing_from_the_reward() -> None:
    rewards, mask = torch.tensor([[0.0, 1.0]]), torch.tensor([[True, True]])
    shaped, (total, rows) = subtract_kl(
        rewards, torch.tensor([[-1.0, -1.0]]), torch.tensor([[-2.0, -torch.inf]]), mask, coef=0.1, kind="k1"
    )
    torch.testing.assert_close(shaped, torch.tensor([[-0.1, 1.0]]))
    assert (float(total), float(rows)) == (0.5, 1.0)


def test_a_controller_without_a_target_never_moves() -> None:
    controller = KLController(0.05)
    assert controller.updated(100.0, 1000) == controller


@pytest.mark.parametrize("kind", KL_ESTIMATORS)
def test_every_estimator_is_zero_on_the_reference_itself(kind: str) -> None:
    leaf = torch.tensor([-1.0, -2.0]).requires_grad_()
    value = kl_estimate(leaf, leaf.detach(), kind)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert (value == 0).all()
    assert (grad == (1 if kind in ("k1", "kl") else 0)).all()


def test_the_estimators_agree_with_the_full_divergence_on_average() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, reference = torch.rand(5, generator=rng), torch.rand(5, generator=rng)
    policy, other = logits.log_softmax(-1), reference.log_softmax(-1)
    exact = kl_full(logits, reference)
    for kind in ("k1", "k3"):
        torch.testing.assert_close((policy.exp() * kl_estimate(policy, other, kind)).sum(), exact)


def test_the_gradient_of_k2_is_that_of_the_divergence_and_the_gradient_of_k1_is_zero_on_average() -> None:
    rng = torch.Generator().manual_seed(1)
    logits, reference = torch.randn(5, generator=rng).requires_grad_(), torch.randn(5, generator=rng)
    (exact,) = torch.autograd.grad(kl_full(logits, reference), logits)
    for kind, expected in (("k2", exact), ("k3+", exact), ("k1", torch.zeros(5))):
        policy = logits.log_softmax(-1)
        sampled = policy.detach().exp() * kl_estimate(policy, reference.log_softmax(-1), kind)
        (grad,) = torch.autograd.grad(sampled.sum(), logits)
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)


def test_a_token_that_both_policies_exclude_adds_nothing_to_the_full_divergence() -> None:
    leaf = torch.tensor([0.0, 0.0, -torch.inf]).requires_grad_()
    value = kl_full(leaf, torch.tensor([0.0, 1.0, -torch.inf]))
    assert value.isfinite()
    (grad,) = torch.autograd.grad(value, leaf)
    assert grad.isfinite().all()


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'k4'.*low_var_kl"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")


def test_whitening_only_the_scale_keeps_the_mean() -> None:
    values, mask = torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[True, True, False]])
    whitened = whiten(values, mask, shift_mean=False)
    torch.testing.assert_close(whitened, torch.tensor([[2 - 0.5**0.5, 2 + 0.5**0.5, 0.0]]))


def test_rows_without_tokens_have_no_age() -> None:
    versions, mask = torch.tensor([[3, 9], [1, 1]]), torch.tensor([[True, False], [False, False]])
    values = finish(*lag_metrics(versions, mask, current=7))
    assert values["stale/lag_mean"] == values["stale/lag_max"] == values["stale/oldest_lag_max"] == 4
    assert values["stale/span_mean"] == 1
    assert finish(*lag_metrics(versions, mask & False, current=7)) == {}


def test_the_interpolated_policy_is_the_samplers_where_nothing_has_happened_since() -> None:
    sampler = torch.tensor([[-30.0, -torch.inf, -1.0]])
    mixed = proximal_logprobs(
        sampler, torch.full((1, 3), -2.0), torch.tensor([[9, 9, -1]]), current=10, method="linear"
    )
    assert torch.equal(mixed, sampler)
