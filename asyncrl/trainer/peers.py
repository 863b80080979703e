"""What ranks that share the tokens of a row tell each other in a pass, with gradients.

    whole_row    keys and values of all of the row's tokens, of which each rank has two pieces (documents.Share)
    whole_batch  what each rank found of its own trained tokens, as one vector on all of them

Every rank computes the same loss from the whole of them, so the gradient of `whole_batch` is the rank's own part as it
is, and the sum over ranks of what comes out of the passes is the gradient of that one loss.
"""

from collections.abc import Callable
from typing import Any  # autograd's ctx: torch documents that attributes are set on it, and types none of them

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def whole_row(states_KTD: Tensor, peers: dist.ProcessGroup) -> Tensor:
    """[K, size x T, D] of the row, in its order; each rank's gradient is the sum over ranks of that of its own tokens.

    Args:
        states_KTD: of this rank's two pieces, the first before the second.
    """
    apply: Callable[..., Tensor] = _WholeRow.apply  # typed here: torch leaves it without types
    return apply(states_KTD, peers)


def whole_batch(values_CM: Tensor, places_M: Tensor, num_tokens: int, peers: dist.ProcessGroup) -> Tensor:
    """[C, N] values of all ranks in their places; each rank's gradient is that of its own.

    Args:
        values_CM: of this rank's tokens. places_M: int64, their places among the `num_tokens`.
    """
    apply: Callable[..., Tensor] = _WholeBatch.apply
    return apply(values_CM, places_M, num_tokens, peers)


class _WholeRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_KTD: Tensor, peers: dist.ProcessGroup) -> Tensor:
        ctx.peers, size = peers, dist.get_world_size(peers)
        heads, tokens, width = states_KTD.shape
        gathered = states_KTD.new_empty(size * heads, tokens, width)
        dist.all_gather_into_tensor(gathered, states_KTD.contiguous(), group=peers)
        pieces = gathered.view(size, heads, 2, tokens // 2, width).unbind(2)
        # The second pieces lie in the row from the last rank's to the first's.
        row = torch.cat([pieces[0], pieces[1].flip(0)])
        return row.transpose(0, 1).reshape(heads, size * tokens, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        size = dist.get_world_size(ctx.peers)
        heads, tokens, width = grad.shape
        halves = grad.view(heads, 2, size, tokens // (2 * size), width).permute(2, 1, 0, 3, 4)
        by_rank = torch.stack([halves[:, 0], halves[:, 1].flip(0)], dim=2).reshape(size * heads, tokens // size, width)
        # Summed in single precision: as many terms as ranks, of bfloat16 each.
        precise = torch.promote_types(grad.dtype, torch.float32)
        own = torch.empty(heads, tokens // size, width, dtype=precise, device=grad.device)
        dist.reduce_scatter_tensor(own, by_rank.to(precise).contiguous(), group=ctx.peers)
        return own.to(grad.dtype), None


class _WholeBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_CM: Tensor, places_M: Tensor, num_tokens: int, peers: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(places_M)
        whole = values_CM.new_zeros(values_CM.shape[0], num_tokens)
        whole[:, places_M] = values_CM
        dist.all_reduce(whole, group=peers)
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (places_M,) = ctx.saved_tensors
        return grads[0][:, places_M], None, None, None
