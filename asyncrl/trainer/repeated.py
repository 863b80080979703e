"""States of tokens that several documents see, once for each of them; their gradient is the sum over these."""

from collections.abc import Callable
from typing import Any  # autograd's ctx: torch documents that attributes are set on it, and types none of them

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncrl.trainer.documents import Repeats


def repeated(states_1KTD: Tensor, repeats: Repeats) -> Tensor:
    """[1, K, repeats, D] of [1, K, T, D]; differentiable."""
    apply: Callable[..., Tensor] = _Repeated.apply  # typed here: torch leaves it without types
    return apply(states_1KTD.squeeze(0).transpose(0, 1), repeats).transpose(0, 1).unsqueeze(0)


class _Repeated(torch.autograd.Function):
    """Copies of rows. Nothing is added by place going back: slow on a CPU, and another sum each time on a GPU."""

    @staticmethod
    def forward(ctx: Any, states_TKD: Tensor, repeats: Repeats) -> Tensor:
        ctx.repeats = repeats
        return states_TKD.index_select(0, repeats.index_K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_KKD: Tensor) -> tuple[Tensor, None]:
        repeats: Repeats = ctx.repeats
        grad_TKD = grad_KKD.index_select(0, repeats.own_T)
        for start, stop, number, index in repeats.sums:
            copies = grad_KKD.index_select(0, index)
            grad_TKD[start:stop] += copies.view(number, stop - start, *copies.shape[1:]).sum(dim=0)
        return grad_TKD, None
