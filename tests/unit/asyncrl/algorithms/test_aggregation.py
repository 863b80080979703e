"""Denominators: of the whole mini-batch, of rows that have tokens, never of a tensor's width."""

import pytest
import torch

from asyncrl.algorithms.aggregation import aggregate, count


def test_two_micro_batches_of_unequal_length_give_the_mean_over_all_tokens() -> None:
    short, long = torch.ones(1, 2), torch.full((1, 6), 3.0)
    parts = [
        aggregate(loss, torch.ones_like(loss, dtype=torch.bool), "token-mean", global_tokens=8, global_seqs=2)
        for loss in (short, long)
    ]
    assert sum(parts) == 2.5


def test_a_row_padded_further_keeps_its_loss_under_a_constant_norm() -> None:
    values = []
    for width in (8, 16):
        loss, mask = torch.full((1, width), 2.0), torch.arange(width)[None] < 4
        values.append(aggregate(loss, mask, "seq-mean-token-sum-norm", global_tokens=4, global_seqs=1, norm_length=32))
    assert values == [0.25, 0.25]


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"])
def test_a_row_without_tokens_is_not_a_row(mode: str) -> None:
    """An aborted rollout has no mean of its own, and no share in that of the others (B080)."""
    loss = torch.tensor([[torch.nan, torch.inf], [2.0, 2.0]])
    mask = torch.tensor([[False, False], [True, True]])
    expected = 4.0 if mode == "seq-mean-token-sum" else 2.0
    assert aggregate(loss, mask, mode, global_tokens=None, global_seqs=None) == expected
    assert count(mask) == (2, 1)


def test_the_constant_norm_without_its_constant_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.norm_length"):
        aggregate(
            torch.ones(1, 1),
            torch.ones(1, 1, dtype=torch.bool),
            "seq-mean-token-sum-norm",
            global_tokens=1,
            global_seqs=1,
        )


def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="seq-mean-token-mean"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), "mean", global_tokens=1, global_seqs=1)
