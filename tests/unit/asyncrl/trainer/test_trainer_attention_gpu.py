"""Attention within documents by the variable-length kernel of a CUDA device, against the CPU's."""

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.trainer import attention
from asyncrl.trainer.attention import within_documents
from asyncrl.trainer.documents import Documents, Repeats, Share

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = (70, 33, 33, 5, 1, 2)


def make_states(heads: int, seed: int) -> torch.Tensor:
    return torch.randn(1, heads, sum(LENGTHS), 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("share", [None, Share(None, 0, 2), Share(None, 1, 2)], ids=["alone", "first", "second"])
def test_the_kernel_gives_what_one_call_for_each_document_gives(window, share, monkeypatch):
    states = [make_states(heads, seed) for seed, heads in enumerate((4, 2, 2))]
    if share is not None:
        states[0] = torch.cat([states[0][:, :, slice(*piece)] for piece in share.of(sum(LENGTHS))], dim=2)
    found = {}
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        there = [each.to(device, dtype).requires_grad_() for each in states]
        if device == "cuda":
            monkeypatch.setattr(attention, "scaled_dot_product_attention", None)  # it must be the kernel
        documents = Documents.of(LENGTHS, torch.device(device), share)
        out, _ = within_documents(nn.Module(), *there, None, documents=documents, sliding_window=window)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(device, dtype)
        gradients = torch.autograd.grad(out, there, upstream)
        found[device] = [each.float().cpu() for each in (out, *gradients)]
    for one, other in zip(found["cuda"], found["cpu"], strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("window", [None, 7])
def test_the_kernel_sees_a_shared_prompt_as_one_call_for_each_document_does(window, monkeypatch):
    """A prompt of 33 tokens of two rows, which have 37 tokens each of their own, and a row of 38 by itself."""
    prompt = np.arange(33)
    index = np.concatenate([prompt, prompt, np.arange(33, 70), prompt, np.arange(70, 107), np.arange(107, 145)])
    states = [
        torch.cat([make_states(heads, seed), make_states(heads, seed + 5)], dim=2)[:, :, :145]
        for seed, heads in enumerate((4, 2, 2))
    ]
    found = {}
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        there = [each.to(device, dtype).requires_grad_() for each in states]
        if device == "cuda":
            monkeypatch.setattr(attention, "scaled_dot_product_attention", None)  # it must be the kernel
        repeats = Repeats.of(index, 33, torch.device(device))
        documents = Documents.behind_prompts([(33, 33), (37, 70), (37, 70), (38, 38)], repeats, torch.device(device))
        out, _ = within_documents(nn.Module(), *there, None, documents=documents, sliding_window=window)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(device, dtype)
        gradients = torch.autograd.grad(out, there, upstream)
        found[device] = [each.float().cpu() for each in (out, *gradients)]
    for one, other in zip(found["cuda"], found["cpu"], strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)
