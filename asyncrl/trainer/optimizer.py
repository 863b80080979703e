"""AdamW and its learning rate: a pure function of the number of optimizer steps, so that a resume continues it."""

import math
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Course(Protocol):
    """The part of ActorConfig that a learning rate depends on."""

    @property
    def lr(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def lr_decay(self) -> str: ...
    @property
    def min_lr_ratio(self) -> float: ...


def learning_rate(course: Course, step: int, total_steps: int) -> float:
    """Learning rate of an optimizer step.

    Args:
        step: 1 for the first.
        total_steps: optimizer steps of the whole run; later ones keep the last rate.
    """
    if step <= course.warmup_steps:
        return course.lr * step / course.warmup_steps
    if course.lr_decay == "constant":
        return course.lr
    done = min((step - course.warmup_steps) / max(total_steps - course.warmup_steps, 1), 1.0)
    left = 1.0 - done if course.lr_decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return course.lr * (course.min_lr_ratio + (1.0 - course.min_lr_ratio) * left)


def adamw(parameters: Iterable[nn.Parameter], betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """AdamW with one kernel for all parameters; the learning rate is set before each step."""
    return torch.optim.AdamW(parameters, lr=0.0, betas=betas, weight_decay=weight_decay, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients of all ranks together to at most `max_norm`; the norm before, which may be NaN or infinite."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def moments(optimizer: torch.optim.AdamW, parameter: nn.Parameter) -> dict[str, Tensor]:
    """AdamW's two moments of a parameter, sharded as it is; empty before its first step."""
    state = optimizer.state.get(parameter, {})
    return {name: state[name] for name in ("exp_avg", "exp_avg_sq") if name in state}


def restore_moments(
    optimizer: torch.optim.AdamW, parameter: nn.Parameter, values: dict[str, Tensor], steps: int
) -> None:
    """Put a parameter's moments back, as after `steps` optimizer steps."""
    optimizer.state[parameter] = {
        "step": torch.tensor(float(steps), dtype=torch.float32, device=parameter.device),
        **values,
    }
