"""Policy losses at the edges: on-policy, far off-policy, and with values that are not finite."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.base import NonFiniteError, TokenLoss, require_finite
from asyncrl.algorithms.losses import cispo, dppo_kl, dppo_tv, dro, ppo_clip, reinforce, sapo
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.sequence_losses import gmpo, gspo

Loss = Callable[..., TokenLoss]
INF, NAN = float("inf"), float("nan")

PPO = partial(ppo_clip, low=0.2, high=0.28, dual_clip=3.0)
RATIO_LOSSES: dict[str, Loss] = {
    "ppo_clip": PPO,
    "gspo": partial(gspo, low=3e-4, high=4e-4),
    "gmpo": partial(gmpo, low=0.4, high=0.4),
    "sapo": partial(sapo, tau_positive=1.0, tau_negative=1.05),
}
BARE_LOSSES: dict[str, Loss] = {
    "cispo": partial(cispo, low=1.0, high=0.2),
    "reinforce": reinforce,
    "dppo_tv": partial(dppo_tv, low=0.2, high=0.2, ratio_cap=20.0),
    "dppo_kl": partial(dppo_kl, low=0.2, high=0.2, ratio_cap=20.0),
    "dro": partial(dro, beta=0.1),
}
LOSSES = RATIO_LOSSES | BARE_LOSSES


def run(loss: Loss, logprobs: list[float], proximal: list[float], advantages: list[float]) -> tuple[TokenLoss, Tensor]:
    """Token losses of one row, and the gradient of their sum."""
    leaf = torch.tensor([logprobs]).requires_grad_()
    mask = torch.ones(1, len(logprobs), dtype=torch.bool)
    tokens = loss(leaf, torch.tensor([proximal]), torch.tensor([advantages]), mask)
    tokens.loss_BT.sum().backward()
    assert leaf.grad is not None
    return tokens, leaf.grad[0]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_on_policy_every_loss_has_the_policy_gradient(name: str) -> None:
    """With weights unchanged the gradient is -A (for a row's loss its share), whatever the loss does further away."""
    _, grad = run(LOSSES[name], [-1.0, -0.5, -2.0], [-1.0, -0.5, -2.0], [0.5, 0.5, 0.5])
    expected = torch.full((3,), -0.5) / (3 if name == "gmpo" else 1)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
def test_a_log_ratio_of_a_hundred_gives_finite_losses_and_gradients(name: str, advantage: float) -> None:
    for logprob in (-0.5, -100.5, -200.5):
        tokens, grad = run(LOSSES[name], [logprob], [-100.5], [advantage])
        assert tokens.loss_BT.isfinite().all()
        assert grad.isfinite().all()
        assert finish(tokens.metrics)["nonfinite_tokens"] == 0


@pytest.mark.parametrize("name", sorted(RATIO_LOSSES))
def test_a_vanished_probability_is_a_clamped_ratio_for_a_ratio_loss(name: str) -> None:
    tokens, grad = run(RATIO_LOSSES[name], [-INF, -1.0], [-1.0, -1.0], [1.0, 1.0])
    assert not tokens.nonfinite_BT.any()
    assert grad.isfinite().all()
    assert grad[0] == 0


@pytest.mark.parametrize("name", sorted(BARE_LOSSES))
def test_a_vanished_probability_is_left_out_and_counted_where_the_logprob_itself_is_the_loss(name: str) -> None:
    tokens, grad = run(BARE_LOSSES[name], [-INF, -1.0], [-1.0, -1.0], [1.0, 1.0])
    assert tokens.nonfinite_BT.tolist() == [[True, False]]
    assert finish(tokens.metrics)["nonfinite_tokens"] == 0.5
    assert grad[0] == 0
    assert grad[1] == -1


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("bad", [NAN, INF, 3e38, -3e38])
def test_an_advantage_that_overflows_costs_its_own_token_only(name: str, bad: float) -> None:
    tokens, grad = run(LOSSES[name], [-1.0, -0.1], [-9.0, -0.1], [bad, 1.0])
    assert tokens.loss_BT.isfinite().all()
    assert grad.isfinite().all()


def test_clip_higher_leaves_room_above_only() -> None:
    tokens, grad = run(PPO, [0.25, -0.25], [0.0, 0.0], [1.0, -1.0])
    # Ratio 1.284 with A > 0 is above 1.28; ratio 0.779 with A < 0 is below 0.8.
    assert grad.tolist() == [0.0, 0.0]
    torch.testing.assert_close(tokens.loss_BT, torch.tensor([[-1.28, 0.8]]))
    assert finish(tokens.metrics)["clip_frac"] == 1.0


def test_the_dual_clip_bounds_a_negative_advantage_and_can_be_switched_off() -> None:
    tokens, grad = run(PPO, [2.0], [0.0], [-1.0])
    assert tokens.loss_BT.item() == 3.0
    assert grad.item() == 0.0
    assert finish(tokens.metrics)["clip_frac_lower"] == 1.0
    tokens, grad = run(partial(ppo_clip, low=0.2, high=0.28, dual_clip=None), [2.0], [0.0], [-1.0])
    torch.testing.assert_close(grad, torch.tensor([2.0]).exp())
    assert "clip_frac_lower" not in tokens.metrics


def test_the_older_a_token_the_narrower_its_clip_range() -> None:
    """A ratio of 1.15 is free at lag 0 (range 0.2) and at the edge of nothing at lag 2 (range 0.05)."""
    logprobs = torch.full((1, 3), 1.15).log().requires_grad_()
    lags = torch.tensor([[0, 1, 2]])
    clip = partial(ppo_clip, low=0.2, high=0.2, dual_clip=None, lag_scale=0.5)
    ones, mask = torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool)
    result = clip(logprobs, torch.zeros(1, 3), ones, mask, lags_BT=lags)
    result.loss_BT.sum().backward()
    torch.testing.assert_close(result.loss_BT, torch.tensor([[-1.15, -1.1, -1.05]]))
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-1.15, 0.0, 0.0]]))
    plain = ppo_clip(logprobs, torch.zeros(1, 3), ones, mask, low=0.2, high=0.2, dual_clip=None)
    torch.testing.assert_close(plain.loss_BT, torch.full((1, 3), -1.15))


def test_a_whole_row_shares_gspos_ratio_so_that_one_token_far_off_does_not_clip_it() -> None:
    logprobs = [0.02] + [0.0] * 99
    tokens, grad = run(RATIO_LOSSES["gspo"], logprobs, [0.0] * 100, [1.0] * 100)
    torch.testing.assert_close(tokens.loss_BT, torch.full((1, 100), -1.0002), rtol=1e-5, atol=0.0)
    assert (grad != 0).all()


def test_weights_multiply_the_loss_and_carry_no_gradient() -> None:
    leaf = torch.tensor([[-1.0, -1.0]]).requires_grad_()
    weights = torch.tensor([[0.5, 0.0]]).requires_grad_()
    tokens = PPO(leaf, leaf.detach(), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), weights)
    tokens.loss_BT.sum().backward()
    assert tokens.loss_BT.tolist() == [[-0.5, 0.0]]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[-0.5, 0.0]]
    assert weights.grad is None


def test_bfloat16_logprobs_are_subtracted_in_float32() -> None:
    leaf = torch.tensor([[-1.0078125]], dtype=torch.bfloat16).requires_grad_()
    proximal = torch.tensor([[-1.0100000]])
    tokens = PPO(leaf, proximal, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(tokens.loss_BT, torch.tensor([[-1.0021899]]))


def test_too_many_nonfinite_tokens_stop_the_step_and_say_what_to_look_at() -> None:
    require_finite(1, 100, limit=0.01)
    require_finite(0, 0, limit=0.0)
    with pytest.raises(NonFiniteError, match=r"2 of 100 tokens.*2\.00% > algorithm\.max_nonfinite_frac = 1\.00%"):
        require_finite(2, 100, limit=0.01)
