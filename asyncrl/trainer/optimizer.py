"""AdamW and its learning rate: a pure function of the number of optimizer steps, so that a resume continues it."""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from asyncrl.errors import NumericsError
from asyncrl.trainer.meshes import is_first_holder
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.rank_files import local
from asyncrl.trainer.tally import Tally

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Tensor)

MAX_SKIPPED = 3
"""Optimizer steps in a row without a finite gradient norm after which the run stops: the weights no longer recover."""


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


class Settings(Course, Protocol):
    """The part of a model's section that its optimizer reads."""

    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def grad_clip(self) -> float: ...


class GuardedAdamW:
    """AdamW of one model, with its course. A gradient that is not finite is left out; a few in a row are an error.

    Attributes:
        steps: how many were taken; with the weights and the moments it is all that a resume needs.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], settings: Settings, *, section: str, total_steps: int, ranks: Ranks
    ) -> None:
        """Take the parameters of a rank.

        Args:
            section: of the configuration that the settings are of; metrics are named after it.
            total_steps: optimizer steps of the whole run, for the course of the learning rate.
        """
        self.adamw = adamw(parameters, settings.betas, settings.weight_decay)
        self.steps = 0
        self._parameters, self._settings = parameters, settings
        self._section, self._total_steps, self._ranks = section, total_steps, ranks
        self._skipped = 0

    def discard(self) -> None:
        """Forget the gradients."""
        self.adamw.zero_grad()

    def step(self, tally: Tally, *, reports: bool) -> None:
        """Apply the gradients and forget them. Every rank calls it together.

        Args:
            reports: whether this rank adds <section>/{grad_norm,lr,skipped_updates} to the tally; one does.
        Raises:
            NumericsError: the gradient norm was not finite MAX_SKIPPED times in a row; the weights are as they were.
        """
        settings, share = self._settings, float(reports)
        lr = learning_rate(settings, self.steps + 1, self._total_steps)
        norm = clip_gradients(self._parameters, settings.grad_clip, self._ranks)
        finite = math.isfinite(norm)
        tally.mean(f"{self._section}/skipped_updates", 0.0 if finite else share, share)
        if finite:
            set_learning_rate(self.adamw, lr)
            self.adamw.step()
            self.steps += 1
            self._skipped = 0
            tally.mean(f"{self._section}/grad_norm", norm * share, share)
            tally.mean(f"{self._section}/lr", lr * share, share)
        self.discard()
        if not finite:
            self._count_skipped(norm)

    def _count_skipped(self, norm: float) -> None:
        self._skipped += 1
        log.warning(
            "%s: gradient norm is %s: optimizer step skipped (%d of %d)",
            self._section,
            norm,
            self._skipped,
            MAX_SKIPPED,
        )
        if self._skipped >= MAX_SKIPPED:
            raise NumericsError(
                f"The gradient norm was not finite ({norm}) in {self._skipped} optimizer steps in a row; each was "
                f"skipped, so the weights are still those of the last good one. Lower {self._section}.lr, set "
                "model.dtype: float32, or go back to an older checkpoint."
            )


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
    """AdamW with one kernel for all parameters of a mesh; the learning rate is set before each step."""
    groups = [{"params": alike} for alike in by_mesh(parameters)]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, weight_decay=weight_decay, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, ranks: Ranks) -> float:
    """Scale gradients of all ranks together to at most `max_norm`; the norm before, which may be NaN or infinite.

    Each element counts once, on the first rank that holds it, and all ranks get one number: copies would drift apart
    otherwise.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    pieces = [local(parameter.grad) for parameter in trained if parameter.grad is not None]
    own = [piece for piece, parameter in zip(pieces, trained, strict=True) if is_first_holder(parameter, ranks.meshes)]
    norms = torch.stack(torch._foreach_norm(own)) if own else torch.zeros(1)
    norm = math.sqrt(float(ranks.sum(norms.double().square().sum().reshape(1).cpu())))
    if pieces:
        torch._foreach_mul_(pieces, min(max_norm / (norm + 1e-6), 1.0))
    return norm


def by_mesh(tensors: Iterable[T]) -> list[list[T]]:
    """Tensors whose ranks are the same together, in order: no operation takes those of two meshes at once."""
    groups: dict[object, list[T]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(groups.values())


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
