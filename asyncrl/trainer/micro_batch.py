"""Rows of a batch for one forward pass, and their trained tokens.

    packed   one row of T tokens: the rows one after another as documents, of which attention sees one at a time
    padded   [R, T]: the rows padded on the right, for models whose attention cannot be kept within a document

Either way RS is a grid of rows by trained tokens, for losses that look at whole rows. Nothing here loops over tokens in
Python.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.trainer import packing
from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.documents import Documents


@dataclass(frozen=True)
class Inputs:
    """What the model reads.

    Attributes:
        token_ids_RT: int64, [1, T] packed or [R, T] padded.
        positions_RT: int64, [1, T] of each token in its document; None: its place in the padded row.
        documents: bounds in a packed row; None where rows are padded.
        starts_R: place of each row's first token in token_ids_RT, flattened.
        rows_R: which of the batch's rows they are.
        lengths_R: tokens of each row that are read.
    """

    token_ids_RT: Tensor
    positions_RT: Tensor | None
    documents: Documents | None
    starts_R: Ints
    rows_R: Ints
    lengths_R: Ints

    def arguments(self) -> dict[str, Any]:
        """What a transformers model is called with."""
        if self.documents is None:
            # Rows are padded on the right and attention is causal, so that padding reaches no real token.
            return {"input_ids": self.token_ids_RT, "use_cache": False}
        return {
            "input_ids": self.token_ids_RT,
            "position_ids": self.positions_RT,
            "documents": self.documents,
            "use_cache": False,
        }


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward pass and their trained tokens."""

    inputs: Inputs
    predictors_N: Tensor
    """[N] int64, place of the token before each trained token in inputs.token_ids_RT, flattened."""
    labels_N: Tensor
    slots_N: Tensor
    """[N] int64, place of each trained token in the grid, flattened."""
    index_N: Ints
    """Place of each trained token in the batch's arrays."""
    mask_RS: Tensor
    sampler_RS: Tensor
    lags_RS: Tensor
    lags: tuple[int, ...]
    """Those in `lags_RS`, each once, ascending: the device need not be asked which there are."""
    sources: tuple[str, ...]
    source_N: Tensor
    """[N] int64, index of each trained token's source in `sources`."""

    def grid(self, values_N: Tensor) -> Tensor:
        """[R, S] the tokens' values in their places, 0 elsewhere; the gradient flows through."""
        flat = values_N.new_zeros(self.mask_RS.numel())
        return flat.index_copy(0, self.slots_N, values_N).view(self.mask_RS.shape)


def micro_batches(
    batch: Batch, rows: Ints, max_tokens: int, device: torch.device, *, is_packed: bool
) -> Iterator[MicroBatch]:
    """The given rows in micro-batches of at most `max_tokens` tokens, padding included where there is any.

    A row that is longer by itself is a micro-batch of its own.
    """
    # The last trained token of a row is predicted, never read, so the row ends before it.
    lengths = batch.positions_N[batch.starts_R[rows + 1] - 1]
    parts = (packing.packed if is_packed else packing.padded)(lengths, max_tokens)
    for part in parts:
        inputs = (_one_after_another if is_packed else _side_by_side)(batch, rows[part], lengths[part], device)
        yield _micro_batch(batch, inputs, device)


def empty_micro_batch(device: torch.device, *, is_packed: bool) -> MicroBatch:
    """One token that is not trained: for a rank that has fewer micro-batches than another.

    Ranks that share parameters gather them together, so each runs as many passes as the others.
    """
    zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
    no_rows = np.zeros(0, dtype=np.int64)
    return MicroBatch(
        inputs=Inputs(
            zero,
            positions_RT=zero if is_packed else None,
            documents=Documents.of([1], device) if is_packed else None,
            starts_R=no_rows,
            rows_R=no_rows,
            lengths_R=no_rows,
        ),
        predictors_N=torch.zeros(1, dtype=torch.int64, device=device),
        labels_N=torch.zeros(1, dtype=torch.int64, device=device),
        slots_N=torch.zeros(1, dtype=torch.int64, device=device),
        index_N=np.zeros(0, dtype=np.int64),
        mask_RS=torch.zeros(1, 1, dtype=torch.bool, device=device),
        sampler_RS=torch.zeros(1, 1, device=device),
        lags_RS=zero,
        lags=(),
        sources=(),
        source_N=torch.zeros(1, dtype=torch.int64, device=device),
    )


def _one_after_another(batch: Batch, rows: Ints, lengths: Ints, device: torch.device) -> Inputs:
    token_ids_T = np.concatenate(
        [batch.rows[row].token_ids[:length] for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
    )
    starts_R = np.cumsum(lengths) - lengths
    positions_T = np.arange(len(token_ids_T)) - np.repeat(starts_R, lengths)
    return Inputs(
        torch.from_numpy(token_ids_T.astype(np.int64)[None]).to(device),
        positions_RT=torch.from_numpy(positions_T[None]).to(device),
        documents=Documents.of(lengths.tolist(), device),
        starts_R=starts_R,
        rows_R=rows,
        lengths_R=lengths,
    )


def _side_by_side(batch: Batch, rows: Ints, lengths: Ints, device: torch.device) -> Inputs:
    width = int(lengths.max())
    token_ids_RT = np.zeros((len(rows), width), dtype=np.int64)
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        token_ids_RT[place, :length] = batch.rows[row].token_ids[:length]
    return Inputs(
        torch.from_numpy(token_ids_RT).to(device),
        positions_RT=None,
        documents=None,
        starts_R=np.arange(len(rows)) * width,
        rows_R=rows,
        lengths_R=lengths,
    )


def _micro_batch(batch: Batch, inputs: Inputs, device: torch.device) -> MicroBatch:
    rows = inputs.rows_R
    counts_R = batch.starts_R[rows + 1] - batch.starts_R[rows]
    place_N = np.repeat(np.arange(len(rows)), counts_R)
    within_N = np.arange(int(counts_R.sum())) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
    index_N = batch.starts_R[rows][place_N] + within_N
    shape = (len(rows), int(counts_R.max()))
    slots_N = place_N * shape[1] + within_N

    def grid(values_N: npt.NDArray[np.generic]) -> Tensor:
        filled = np.zeros(shape, dtype=values_N.dtype)
        filled.reshape(-1)[slots_N] = values_N
        return torch.from_numpy(filled).to(device)

    return MicroBatch(
        inputs=inputs,
        predictors_N=torch.from_numpy(inputs.starts_R[place_N] + batch.positions_N[index_N] - 1).to(device),
        labels_N=torch.from_numpy(batch.labels_N[index_N]).to(device),
        slots_N=torch.from_numpy(slots_N).to(device),
        index_N=index_N,
        mask_RS=grid(np.ones(len(index_N), dtype=np.bool_)),
        sampler_RS=grid(batch.sampler_N[index_N]),
        lags_RS=grid(batch.lags_N[index_N]),
        lags=tuple(np.unique(batch.lags_N[index_N]).tolist()),
        sources=batch.sources,
        source_N=torch.from_numpy(batch.source_N[index_N]).to(device),
    )
