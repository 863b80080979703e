"""Layers of which every rank holds a slice: parameters are DTensors, what flows between layers are plain local tensors.

torch's own styles make DTensors of the activations. Packed rows have another length in every micro-batch, and DTensor
then works out anew how each operation is split: milliseconds for each of them, which this saves.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement
from torch.nn import functional


class Columns(ParallelStyle):
    """A linear layer of which each rank makes a part of the outputs, from whole inputs."""

    def __init__(self, *, gathers: bool = False) -> None:
        """`gathers`: every rank gets the whole outputs, else its part."""
        super().__init__()
        self._gathers = gathers

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _cut(module, device_mesh, {"weight": Shard(0), "bias": Shard(0)})
        group = device_mesh.get_group()

        def forward(inputs: Tensor) -> Tensor:
            bias = None if module.bias is None else _own(module.bias)
            outputs = functional.linear(_applied(_SumOfGradients, inputs, group), _own(module.weight), bias)
            return _applied(_Gathered, outputs, group) if self._gathers else outputs

        module.forward = forward
        return module


class Rows(ParallelStyle):
    """A linear layer of which each rank adds up a part of the inputs; every rank gets the sum."""

    def __init__(self, *, splits: bool = False) -> None:
        """`splits`: the inputs are whole, else the rank's part."""
        super().__init__()
        self._splits = splits

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _cut(module, device_mesh, {"weight": Shard(1), "bias": Replicate()})
        group = device_mesh.get_group()

        def forward(inputs: Tensor) -> Tensor:
            part = _applied(_OwnPart, inputs, group) if self._splits else inputs
            outputs = _applied(_Sum, functional.linear(part, _own(module.weight)), group)
            return outputs if module.bias is None else outputs + _own(module.bias)

        module.forward = forward
        return module


class Vocabulary(ParallelStyle):
    """An embedding of which each rank holds a part of the tokens; every rank gets all embedded tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _cut(module, device_mesh, {"weight": Shard(0)})
        group, place = device_mesh.get_group(), device_mesh.get_local_rank()

        def forward(token_ids: Tensor) -> Tensor:
            weight = _own(module.weight)
            own_ids = token_ids - place * len(weight)
            is_other = (own_ids < 0) | (own_ids >= len(weight))
            found = functional.embedding(own_ids.masked_fill(is_other, 0), weight)
            return _applied(_Sum, found.masked_fill(is_other.unsqueeze(-1), 0.0), group)

        module.forward = forward
        return module


class EachHead(ParallelStyle):
    """A module that works on each head alone (a norm of queries or keys): whole on every rank, its input the rank's
    heads, its gradient the sum over ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _cut(module, device_mesh, {name: Replicate() for name, _ in module.named_parameters(recurse=False)})
        whole = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            held = dict(module._parameters)
            own = {name: _own(parameter, Partial()) for name, parameter in held.items() if parameter is not None}
            module._parameters.update(own)  # type: ignore[arg-type]  # for this call no parameters, but parts of some
            try:
                return whole(*args, **kwargs)
            finally:
                module._parameters.update(held)

        module.forward = forward
        return module


def gathered(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The ranks' parts one after another along the last dimension, on every rank; each computes the same from it, so
    that its own part of the gradient is the whole gradient of its part."""
    return _applied(_Gathered, part, group)


def _cut(module: nn.Module, mesh: DeviceMesh, placements: dict[str, Placement]) -> None:
    for name, placement in placements.items():
        parameter = module._parameters.get(name)
        if parameter is not None:
            # Every rank has read the same weights: none has to be sent.
            own = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
            module._parameters[name] = nn.Parameter(own, requires_grad=parameter.requires_grad)


def _own(parameter: object, gradient: Placement | None = None) -> Tensor:
    """This rank's slice of a parameter, whose gradient is placed as the parameter is, or as `gradient` says."""
    assert isinstance(parameter, DTensor)
    return parameter.to_local() if gradient is None else parameter.to_local(grad_placements=[gradient])


def _applied(function: type[torch.autograd.Function], values: Tensor, group: dist.ProcessGroup) -> Tensor:
    outcome: Tensor = function.apply(values, group)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return outcome


# Any: torch leaves untyped what autograd hands to these functions.


class _Sum(torch.autograd.Function):
    """Forward: the sum over ranks. Backward: the gradient as it is, for it is the same on all."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        summed = values.contiguous().clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _SumOfGradients(torch.autograd.Function):
    """Forward: the values as they are, the same on all ranks. Backward: the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        summed = gradients[0].contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed, None


class _Gathered(torch.autograd.Function):
    """Forward: the ranks' parts one after another along the last dimension. Backward: the rank's own part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _together(part, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _part(gradients[0], ctx.group), None


class _OwnPart(torch.autograd.Function):
    """Forward: the rank's own part of the last dimension. Backward: the ranks' parts one after another."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _part(values, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _together(gradients[0], ctx.group), None


def _together(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim=-1)


def _part(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    return values.chunk(group.size(), dim=-1)[group.rank()].contiguous()
