"""The critic's loss: bounded steps, and values that are not finite."""

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.base import TokenLoss
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.value_loss import value_loss

NAN, INF = float("nan"), float("inf")


def run(values: list[float], old: list[float], returns: list[float], clip: float = 0.5) -> tuple[TokenLoss, Tensor]:
    leaf = torch.tensor([values]).requires_grad_()
    mask = torch.ones(1, len(values), dtype=torch.bool)
    tokens = value_loss(leaf, torch.tensor([old]), torch.tensor([returns]), mask, clip=clip)
    tokens.loss_BT.sum().backward()
    assert leaf.grad is not None
    return tokens, leaf.grad[0]


def test_within_the_bound_it_is_half_the_squared_error() -> None:
    tokens, grad = run([1.0, 0.25], [1.0, 0.0], [3.0, -1.0])
    torch.testing.assert_close(tokens.loss_BT, torch.tensor([[2.0, 0.78125]]))
    torch.testing.assert_close(grad, torch.tensor([-2.0, 1.25]))
    assert finish(tokens.metrics) == {"clip_frac": 0.0, "nonfinite_tokens": 0.0}


def test_a_value_that_has_moved_further_towards_its_return_is_not_moved_on() -> None:
    tokens, grad = run([1.0], [0.0], [3.0])
    torch.testing.assert_close(tokens.loss_BT, torch.tensor([[0.5 * 2.5**2]]))
    assert grad.item() == 0.0
    assert finish(tokens.metrics)["clip_frac"] == 1.0


def test_a_value_that_has_moved_away_from_its_return_is_moved_back() -> None:
    _, grad = run([-1.0], [0.0], [3.0])
    assert grad.item() == -4.0


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 3e38])
def test_what_is_not_finite_is_left_out_and_counted(which: int, bad: float) -> None:
    inputs = [[0.5, 1.0], [0.5, 1.0], [1.0, 2.0]]
    inputs[which][0] = bad
    tokens, grad = run(*inputs)
    assert tokens.loss_BT.isfinite().all()
    assert tokens.nonfinite_BT.tolist() == [[True, False]]
    assert finish(tokens.metrics)["nonfinite_tokens"] == 0.5
    assert grad.tolist() == [0.0, -1.0]
