"""Every loss's gradient is that of its formula, written out for the valid tokens of one row in float64.

The formulas know no mask, no clamp of the log ratio and no batch: those have no influence on what is compared here.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss
from asyncrl.algorithms.kl import KL_ESTIMATORS, kl_estimate, kl_full
from asyncrl.algorithms.losses import dro, reinforce, sapo, surrogate
from asyncrl.algorithms.tables import LOSSES
from asyncrl.algorithms.value_loss import value_loss

ROWS, WIDTH = 6, 9

Formula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Logprobs with gradient, proximal logprobs, advantages and selected of a row's valid tokens -> the tokens' losses."""


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))


def ppo_clip(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    loss = clipped((new - old).exp(), advantages, 0.2, 0.2)
    return torch.where(advantages < 0, torch.min(loss, -3.0 * advantages), loss)


def gspo(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    row = (new - old).mean().exp().detach()
    return clipped(row * (new - new.detach()).exp(), advantages, 3e-4, 4e-4)


def gmpo(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    log_ratio = new - old
    bounded = log_ratio.clamp(-0.4, 0.4)
    up, down = torch.min(log_ratio, bounded), torch.max(log_ratio, bounded)
    chosen = torch.where(advantages > 0, up, torch.where(advantages < 0, down, 0.0))
    row = -advantages.mean() * chosen.mean().exp()
    return row.expand(len(new)) / len(new)


def cispo(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    return -(new - old).exp().clamp(0.0, 1.2).detach() * advantages * new


def gate(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    tau = torch.where(advantages > 0, torch.tensor(1.0).double(), torch.tensor(1.05).double())
    return -advantages * torch.sigmoid(tau * ((new - old).exp() - 1)) * 4 / tau


def dppo_tv(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    moved = new.exp() - old.exp()
    valid = torch.where(advantages > 0, moved <= 0.2, moved >= -0.2)
    return -advantages * (new - old).exp().clamp(max=20).detach() * new * valid


def dppo_kl(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    p, q = new.exp(), old.exp()
    divergence = q * (old - new) + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
    up, down = (divergence <= 0.2) | (p <= q), (divergence <= 0.2) | (p >= q)
    return -advantages * (p / q).clamp(max=20).detach() * new * torch.where(advantages > 0, up, down)


def clip_cov(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    return clipped((new - old).exp(), advantages, 0.2, 0.2) * ~selected


def kl_cov(new: Tensor, old: Tensor, advantages: Tensor, selected: Tensor) -> Tensor:
    return -advantages * (new - old).exp() + 0.1 * (new - old).abs() * selected


FORMULAS: dict[str, Formula] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "reinforce": lambda new, old, advantages, selected: -advantages * new,
    "sapo": gate,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "surrogate": lambda new, old, advantages, selected: -advantages * (new - old).exp(),
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dro": lambda new, old, advantages, selected: -(advantages * new - 0.1 / 2 * (new - old) ** 2),
}


class Inputs:
    """Rows with holes, an empty one, and NaN wherever the mask is False."""

    def __init__(self, number: int) -> None:
        rng = torch.Generator().manual_seed(number)
        shape = (ROWS, WIDTH)
        self.mask = torch.rand(shape, generator=rng) < 0.7
        self.mask[0] = False
        old = -0.05 - 3 * torch.rand(shape, generator=rng).double()
        # Below 0, as logprobs are: DPPO's divergence takes the logarithm of 1 - p.
        new = (old + 0.5 * torch.randn(shape, generator=rng).double()).clamp(max=-0.02)
        advantages = torch.randn(shape, generator=rng).double()
        weights = 2 * torch.rand(shape, generator=rng).double()
        self.new, self.old, self.advantages, self.weights = (
            torch.where(self.mask, part, torch.nan) for part in (new, old, advantages, weights)
        )
        self.selected = torch.rand(shape, generator=rng) < 0.3


def gradient_by_formula(formula: Formula, inputs: Inputs, *, weighted: bool, by_row: bool) -> Tensor:
    grad = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    for row in range(ROWS):
        kept = inputs.mask[row]
        if not kept.any():
            continue
        new = inputs.new[row][kept].requires_grad_()
        losses = formula(new, inputs.old[row][kept], inputs.advantages[row][kept], inputs.selected[row][kept])
        weights = inputs.weights[row][kept] if weighted else torch.ones_like(losses)
        # A row's loss has one weight, the geometric mean of its tokens'.
        weights = (weights + 1e-10).log().mean().exp() if by_row else weights
        (weights * losses).sum().backward()
        assert new.grad is not None
        grad[row, kept] = new.grad
    return grad


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_gradient_is_that_of_the_formula_and_exactly_zero_where_masked(name: str, weighted: bool) -> None:
    for number in range(5):
        inputs = Inputs(number)
        choice = LOSSES[name]
        leaf = inputs.new.clone().requires_grad_()
        selected = {"selected_BT": inputs.selected} if choice.selection is not None else {}
        weights = inputs.weights if weighted else None
        tokens = choice.loss(leaf, inputs.old, inputs.advantages, inputs.mask, weights, **selected)
        tokens.loss_BT.sum().backward()
        assert leaf.grad is not None
        expected = gradient_by_formula(FORMULAS[name], inputs, weighted=weighted, by_row=choice.aggregation_fixed)
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-6, atol=1e-9)
        assert (leaf.grad[~inputs.mask] == 0).all()
        assert (leaf.grad[inputs.mask] != 0).any()


def test_every_loss_that_a_configuration_can_name_has_its_formula_here() -> None:
    assert FORMULAS.keys() == LOSSES.keys()


def test_the_value_losss_gradient_is_that_of_its_formula() -> None:
    for number in range(5):
        inputs = Inputs(number)
        old, returns = inputs.old, inputs.advantages
        leaf = inputs.new.clone().requires_grad_()
        value_loss(leaf, old, returns, inputs.mask, clip=0.3).loss_BT.sum().backward()
        plain = inputs.new[inputs.mask].requires_grad_()
        bounded = torch.clamp(plain, old[inputs.mask] - 0.3, old[inputs.mask] + 0.3)
        errors = [(values - returns[inputs.mask]) ** 2 for values in (plain, bounded)]
        (0.5 * torch.max(*errors)).sum().backward()
        assert leaf.grad is not None
        assert plain.grad is not None
        torch.testing.assert_close(leaf.grad[inputs.mask], plain.grad)
        assert (leaf.grad[~inputs.mask] == 0).all()


@pytest.mark.parametrize(
    "loss",
    [reinforce, surrogate, partial(sapo, tau_positive=1.0, tau_negative=1.5), partial(dro, beta=0.3)],
    ids=["reinforce", "surrogate", "sapo", "dro"],
)
def test_a_smooth_losss_gradient_is_its_difference_quotient(loss: Callable[..., TokenLoss]) -> None:
    inputs = Inputs(0)
    new, old = (torch.where(inputs.mask, part, 0.0) for part in (inputs.new, inputs.old))

    def total(logprobs: Tensor) -> Tensor:
        return loss(logprobs, old, inputs.advantages, inputs.mask).loss_BT.sum()

    assert torch.autograd.gradcheck(total, new.requires_grad_())


@pytest.mark.parametrize("kind", [kind for kind in KL_ESTIMATORS if not kind.endswith("+")])
def test_a_kl_estimators_gradient_is_its_difference_quotient(kind: str) -> None:
    new, old = torch.tensor([-1.0, -0.2, -3.0]).double(), torch.tensor([-0.5, -1.0, -2.0]).double()
    assert torch.autograd.gradcheck(lambda logprobs: kl_estimate(logprobs, old, kind), new.requires_grad_())


@pytest.mark.parametrize("kind", [kind for kind in KL_ESTIMATORS if kind.endswith("+")])
def test_a_straight_through_estimator_has_the_gradient_of_k2(kind: str) -> None:
    new, old = torch.tensor([-1.0, -0.2, -3.0]).double().requires_grad_(), torch.tensor([-0.5, -1.0, -2.0]).double()
    kl_estimate(new, old, kind).sum().backward()
    torch.testing.assert_close(new.grad, new.detach() - old)


def test_the_full_kls_gradient_is_its_difference_quotient() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, reference = (torch.randn(3, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    assert torch.autograd.gradcheck(lambda values: kl_full(values, reference), logits.requires_grad_())
