"""Sliced layers and logits beside whole ones, on the ranks that share them: outputs, gradients of inputs and of
parameters."""

from copy import deepcopy

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from asyncrl.algorithms.logprobs import sum_pi_squared
from asyncrl.trainer import vocabulary
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


LOGITS = "logits of a part of the vocabulary"


def sliced_facts(mesh: DeviceMesh) -> dict[str, list[str]]:
    """Of each layer, and of logits, what is not as of the whole one."""
    return {name: _differing(mesh, *layer) for name, layer in LAYERS.items()} | {LOGITS: _differing_of_logits(mesh)}


def _differing_of_logits(mesh) -> list[str]:
    """With a token that cannot be drawn, a row that counts for nothing, and no row at all; in pieces of two rows."""
    torch.manual_seed(1)
    whole_MV, labels_M = 3 * torch.randn(7, 6 * mesh.size()), torch.arange(7) * 2 % (6 * mesh.size())
    whole_MV[2, 5], whole_MV[4] = -torch.inf, torch.nan
    gradients = torch.randn(2, 7)
    gradients[:, 4] = 0.0
    vocabulary._CHUNK_ELEMENTS = 12
    part = whole_MV.chunk(mesh.size(), -1)[mesh.get_local_rank()].clone()
    found: list[list[torch.Tensor]] = []
    for logits_MV, of in (
        (whole_MV, vocabulary.WholeVocabulary()),
        (part, vocabulary.SharedVocabulary(mesh.get_group())),
    ):
        logits_MV.requires_grad_()
        logprobs_M = of.logprobs(logits_MV, labels_M, temperature=0.7)
        entropies_M = of.entropies(logits_MV, temperature=0.7)
        (torch.stack([logprobs_M, entropies_M]) * gradients).nan_to_num().sum().backward()
        squares_M = sum_pi_squared(of.whole(logits_MV))
        found.append([logprobs_M, entropies_M, squares_M, logits_MV.grad])
        assert of.logprobs(logits_MV[:0], labels_M[:0], temperature=1.0).shape == (0,)
        assert of.entropies(logits_MV[:0], temperature=1.0).shape == (0,)
    found[0][3] = found[0][3].chunk(mesh.size(), -1)[mesh.get_local_rank()]
    pairs = dict(zip(("logprobs", "entropies", "measure", "gradient"), zip(*found, strict=True), strict=True))
    return [name for name, pair in pairs.items() if not torch.allclose(*pair, atol=1e-5, equal_nan=True)]


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
