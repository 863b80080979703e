"""Attention within documents against the textbook's: every head, window and gradient, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asyncrl.trainer.attention import CannotPack, within_documents
from asyncrl.trainer.documents import Documents, Share

CPU = torch.device("cpu")
WIDTH = 4


class Layer(nn.Module):
    """What a layer of a decoder says of itself."""

    is_causal = True


def states(heads, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, tokens, WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)


def by_the_book(query, key, value, lengths, scaling, window):
    """One softmax over all tokens of the row, with a mask of which sees which."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(len(document))
    back = place[:, None] - place
    sees = (document[:, None] == document) & (back >= 0) & (back < (window or len(document)))
    heads = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(heads, dim=1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * (WIDTH**-0.5 if scaling is None else scaling)
    return (scores.masked_fill(~sees, -torch.inf).softmax(-1) @ value).transpose(1, 2)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    heads=st.sampled_from([(1, 1), (4, 2), (4, 1), (3, 3)]),
    window=st.sampled_from([None, 1, 3, 50]),
    scaling=st.sampled_from([None, 0.3]),
    is_sorted=st.booleans(),
)
def test_values_and_gradients_are_those_of_a_masked_softmax(lengths, heads, window, scaling, is_sorted):
    lengths = sorted(lengths, reverse=True) if is_sorted else lengths
    tensors = [states(number, sum(lengths), seed) for seed, number in enumerate((heads[0], heads[1], heads[1]))]
    documents = Documents.of(lengths, CPU)
    found, no_weights = within_documents(
        Layer(), *tensors, None, documents=documents, scaling=scaling, sliding_window=window
    )
    expected = by_the_book(*tensors, lengths, scaling, window)
    assert no_weights is None
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    for one, other in zip(*(torch.autograd.grad(out, tensors, upstream) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    size=st.integers(2, 4),
    window=st.sampled_from([None, 1, 3]),
)
def test_the_parts_of_a_row_that_ranks_share_give_what_the_whole_row_gives(lengths, size, window):
    """Each rank has its own queries, and the keys and values of all."""
    multiple = Share(None, 0, size).multiple
    lengths = [*lengths, multiple - sum(lengths) % multiple]
    tensors = [states(heads, sum(lengths), seed) for seed, heads in enumerate((4, 2, 2))]
    expected = by_the_book(*tensors, lengths, None, window)
    found, places = [], []
    for rank in range(size):
        share = Share(None, rank, size)
        pieces = share.of(sum(lengths))
        query = torch.cat([tensors[0][:, :, slice(*piece)] for piece in pieces], dim=2)
        documents = Documents.of(lengths, CPU, share)
        part, _ = within_documents(Layer(), query, *tensors[1:], None, documents=documents, sliding_window=window)
        found.append(part)
        places += [place for piece in pieces for place in range(*piece)]
    assert sorted(places) == list(range(sum(lengths)))
    found = torch.cat(found, dim=1)
    torch.testing.assert_close(found, expected[:, places], rtol=1e-10, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad((found * expected[:, places].detach()).sum(), tensors),
        torch.autograd.grad((expected * expected.detach()).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("is_cast", [False, True], ids=["held", "autocast"])
def test_bfloat16_on_a_cpu_is_computed_in_float32(is_cast):
    """Values and gradients to the bit: torch's own bfloat16 rounds within, and its backward pass is slow there."""
    wide = [
        states(heads, 40, seed).detach().bfloat16().float().requires_grad_() for seed, heads in enumerate((4, 2, 2))
    ]
    narrow = [tensor.detach().to(torch.float32 if is_cast else torch.bfloat16).requires_grad_() for tensor in wide]
    documents = Documents.of([19, 19, 2], CPU)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        found, _ = within_documents(Layer(), *narrow, None, documents=documents)
    expected = within_documents(Layer(), *wide, None, documents=documents)[0].bfloat16()
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).bfloat16()
    gradients, wanted = torch.autograd.grad(found, narrow, upstream), torch.autograd.grad(expected, wide, upstream)
    for one, other in zip(gradients, wanted, strict=True):
        assert torch.equal(one, other.to(one.dtype))


def test_what_is_in_one_document_does_not_reach_another():
    tensors = [states(2, 7, seed) for seed in range(3)]
    documents = Documents.of([3, 4], CPU)
    before, _ = within_documents(Layer(), *tensors, None, documents=documents)
    with torch.no_grad():
        for tensor in tensors:
            tensor[:, :, :3] = torch.nan
    after, _ = within_documents(Layer(), *tensors, None, documents=documents)
    assert torch.equal(after[:, 3:], before[:, 3:])
    assert after[:, :3].isnan().all()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.zeros(2)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"is_causal": False}, "is_causal = False"),
        ({"dropout": 0.1}, "dropout"),
        ({"documents": None}, "no documents"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_computed_is_refused_and_named(asked, named):
    tensors = [states(2, 3, seed) for seed in range(3)]
    with pytest.raises(CannotPack, match=rf"Layer calls its attention with {named}.* Set actor\.packing"):
        within_documents(Layer(), *tensors, None, **{"documents": Documents.of([3], CPU), **asked})


def test_a_mask_is_refused():
    tensors = [states(2, 3, seed) for seed in range(3)]
    with pytest.raises(CannotPack, match="attention_mask"):
        within_documents(Layer(), *tensors, torch.zeros(1, 1, 3, 3), documents=Documents.of([3], CPU))


def test_arguments_without_effect_pass():
    tensors = [states(2, 3, seed) for seed in range(3)]
    quiet = {"output_attentions": False, "use_cache": False, "position_ids": torch.arange(3), "s_aux": None}
    within_documents(Layer(), *tensors, None, documents=Documents.of([3], CPU), **quiet)
