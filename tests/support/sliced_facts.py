"""Sliced layers beside whole ones, on the ranks that share them: outputs, gradients of inputs and of parameters."""

from copy import deepcopy

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from asyncrl.trainer.sliced_layers import Columns, EachHead, Rows, Vocabulary

LAYERS = {
    "columns": (lambda: nn.Linear(8, 6), Columns, None, -1),
    "columns, gathered": (lambda: nn.Linear(8, 6, bias=False), lambda: Columns(gathers=True), None, None),
    "rows": (lambda: nn.Linear(8, 6), Rows, -1, None),
    "rows of whole inputs": (lambda: nn.Linear(8, 6), lambda: Rows(splits=True), None, None),
    "vocabulary": (lambda: nn.Embedding(10, 6), Vocabulary, None, None),
    "each head": (lambda: nn.LayerNorm(8), EachHead, 2, 2),
}
"""Layer, style, and the dimension of which a rank gets and gives a part; None: all of it."""


def sliced_facts(mesh: DeviceMesh) -> dict[str, list[str]]:
    """Of each layer what is not as of the whole one."""
    return {name: _differing(mesh, *layer) for name, layer in LAYERS.items()}


def _differing(mesh, make, style, part_in, part_out) -> list[str]:
    torch.manual_seed(0)
    whole = make()
    is_embedding = isinstance(whole, nn.Embedding)
    inputs = torch.arange(10).reshape(2, 5) if is_embedding else torch.randn(2, 3, 4, 8)
    sliced = nn.ModuleDict({"layer": deepcopy(whole)})
    parallelize_module(sliced, mesh, {"layer": style()})

    def part(values, dim):
        return values if dim is None else values.chunk(mesh.size(), dim)[mesh.get_local_rank()]

    own = part(inputs, part_in).clone()
    if not is_embedding:
        inputs.requires_grad_()
        own.requires_grad_()
    expected, found = whole(inputs), sliced["layer"](own)
    gradient = torch.randn(expected.shape)
    expected.backward(gradient)
    found.backward(part(gradient, part_out).contiguous())
    pairs = {"output": (part(expected, part_out), found)}
    if not is_embedding:
        pairs["input"] = (part(inputs.grad, part_in), own.grad)
    for name, parameter in whole.named_parameters():
        grad = getattr(sliced["layer"], name).grad
        assert isinstance(grad, DTensor)
        pairs[name] = (parameter.grad, grad.full_tensor())
    return [name for name, (one, other) in pairs.items() if not torch.allclose(one, other, atol=1e-5)]
