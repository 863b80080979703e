"""Token losses to one number, with denominators of the whole optimizer mini-batch."""

from dataclasses import dataclass

from torch import Tensor

from asyncrl.algorithms.masking import inside, row_lengths

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@dataclass(frozen=True)
class Denominators:
    """Counts over all ranks and micro-batches of one optimizer step, taken before the first backward pass."""

    tokens: int
    """Policy tokens, from the mask before rejection."""
    sequences: int
    """Rows with at least one of them. Padding rows have none."""
    dp_size: int = 1
    """Data-parallel ranks whose gradients are averaged afterwards."""


def count(mask_BT: Tensor) -> tuple[int, int]:
    """(policy tokens, rows that have any) of one rank's rows: sum over ranks and micro-batches for `Denominators`."""
    return int(mask_BT.sum()), int(mask_BT.any(dim=-1).sum())


def aggregate(
    loss_BT: Tensor,
    mask_BT: Tensor,
    mode: str,
    *,
    global_tokens: int | None,
    global_seqs: int | None,
    norm_length: int | None = None,
    dp_size: int = 1,
) -> Tensor:
    """This micro-batch's part of the loss of the whole mini-batch.

    Summing over the micro-batches of a rank and averaging over ranks gives the value on the whole mini-batch, for any
    split by rows: each term is divided by a global count and multiplied by `dp_size`, which averaging takes away.

    Args:
        loss_BT: [B, T] token losses; what stands at masked positions has no influence.
        mask_BT: [B, T] bool, policy tokens before rejection (a rejected token has loss 0 and still counts).
        mode: one of AGGREGATIONS.
        global_tokens: policy tokens of the mini-batch. None: this tensor is the whole mini-batch.
        global_seqs: rows with policy tokens of the mini-batch. None: as above.
        norm_length: constant divisor of seq-mean-token-sum-norm, in tokens.
        dp_size: data-parallel ranks.
    Returns:
        Scalar; 0 with gradient 0, still connected to the graph, without valid tokens.
    Raises:
        ValueError: unknown mode, or norm_length missing where the mode divides by it.
    Source: DAPO arXiv:2503.14476 (token-mean), Dr.GRPO arXiv:2503.20783 (seq-mean-token-sum-norm).
    """
    loss_BT = inside(loss_BT, mask_BT)
    if mode in ("token-mean", "token-sum"):
        if mode == "token-sum":
            return loss_BT.sum() * dp_size
        tokens = mask_BT.sum() if global_tokens is None else global_tokens
        return loss_BT.sum() * dp_size / _at_least_one(tokens)
    rows_B = loss_BT.sum(dim=-1)
    if mode == "seq-mean-token-mean":
        rows_B = rows_B / row_lengths(mask_BT).clamp(min=1)
    elif mode == "seq-mean-token-sum-norm":
        if norm_length is None or norm_length < 1:
            raise ValueError(
                f"seq-mean-token-sum-norm divides by a constant response length >= 1, but norm_length is {norm_length}."
                " The tensor's width would make the loss depend on padding. Set algorithm.norm_length."
            )
        rows_B = rows_B / norm_length
    elif mode != "seq-mean-token-sum":
        raise ValueError(f"Unknown aggregation {mode!r}; known are {', '.join(AGGREGATIONS)}.")
    seqs = mask_BT.any(dim=-1).sum() if global_seqs is None else global_seqs
    return rows_B.sum() * dp_size / _at_least_one(seqs)


def _at_least_one(number: Tensor | int) -> Tensor | int:
    return number.clamp(min=1) if isinstance(number, Tensor) else max(number, 1)
