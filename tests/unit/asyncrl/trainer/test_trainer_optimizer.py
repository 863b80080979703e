"""The learning rate's course, and AdamW's state that survives a checkpoint."""

from itertools import pairwise

import pytest
import torch

from asyncrl.config import ActorConfig
from asyncrl.trainer import optimizer as optim
from asyncrl.trainer.parallel import OneRank


def rates(steps, total, **settings):
    course = ActorConfig(lr=1.0, **settings)
    return [optim.learning_rate(course, step, total) for step in steps]


def test_warm_up_is_linear_and_reaches_the_peak():
    assert rates([1, 2, 4, 5, 9], 100, warmup_steps=4) == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_the_rate_after_a_resume_is_that_of_an_uninterrupted_run():
    # A function of the step alone: step 21 after a checkpoint at 20 has its warm-up behind it.
    assert rates([21], 100, warmup_steps=10) == [1.0]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_ends_at_the_ratio_and_stays_there(decay):
    course = rates(range(1, 31), 20, warmup_steps=4, lr_decay=decay, min_lr_ratio=0.1)
    assert course[3] == 1.0
    assert course[11] == pytest.approx(0.55)
    assert course[19] == course[29] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in pairwise(course[3:]))


def test_moments_put_back_continue_as_if_never_interrupted():
    torch.manual_seed(0)
    gradients = [torch.randn(5) for _ in range(6)]
    straight, resumed = torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))
    optimizer = optim.adamw([straight], (0.9, 0.95), 0.01)
    for gradient in gradients[:3]:
        step(optimizer, straight, gradient)
    middle = straight.detach().clone()
    moments = {name: value.clone() for name, value in optim.moments(optimizer, straight).items()}
    for gradient in gradients[3:]:
        step(optimizer, straight, gradient)

    with torch.no_grad():
        resumed.copy_(middle)
    again = optim.adamw([resumed], (0.9, 0.95), 0.01)
    optim.restore_moments(again, resumed, moments, 3)
    for gradient in gradients[3:]:
        step(again, resumed, gradient)
    assert torch.equal(straight, resumed)


def step(optimizer, parameter, gradient):
    optim.set_learning_rate(optimizer, 0.1)
    parameter.grad = gradient.clone()
    optimizer.step()


def test_clipping_reports_the_norm_before():
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert optim.clip_gradients([parameter], 1.0, OneRank()) == pytest.approx(5.0)
    assert parameter.grad.norm() == pytest.approx(1.0, rel=1e-4)
