"""Rows of a batch for one forward pass, and their trained tokens.

    packed   one row of T tokens: the rows one after another as documents, of which attention sees one at a time
    padded   [R, T]: the rows padded on the right, for models whose attention cannot be kept within a document

Ranks that share the tokens of a row have the same micro-batch, but for its inputs: T are the tokens of this rank, and M
of the N trained tokens are predicted by one of them. RS is a grid of rows by trained tokens, for losses that look at
whole rows. Nothing here loops over tokens in Python.
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
from asyncrl.trainer.documents import Documents, Share
from asyncrl.trainer.peers import whole_batch
from asyncrl.trainer.prompts import Layout, Prompts, find_prompts, lay_out
from asyncrl.trainer.routing import recorded_experts


@dataclass(frozen=True)
class Inputs:
    """What the model reads.

    Attributes:
        token_ids_RT: int64, [1, T] packed or [R, T] padded.
        positions_RT: int64, [1, T] of each token in its document; None: its place in the padded row.
        documents: bounds in a packed row; None where rows are padded.
        starts_R: place of each row's first token in the whole packed row, or in token_ids_RT, flattened; with a layout,
            of the first one of its own.
        rows_R: which of the batch's rows they are.
        lengths_R: tokens of each row that are read.
        pieces: from where to where this rank's tokens lie in the whole packed row; None: it has all of them.
        experts_MLK: int64, experts that this rank's tokens were sent to by the server, see routing.COLUMN; None: no row
            says so.
        layout: where tokens lie in a packed row that has prompts of several rows once; None: it has none.
    """

    token_ids_RT: Tensor
    positions_RT: Tensor | None
    documents: Documents | None
    starts_R: Ints
    rows_R: Ints
    lengths_R: Ints
    pieces: tuple[tuple[int, int], tuple[int, int]] | None = None
    experts_MLK: Tensor | None = None
    layout: Layout | None = None

    @property
    def saved(self) -> tuple[int, ...]:
        """Tokens of each prompt that is not read because another row has it."""
        return () if self.layout is None else self.layout.saved

    def places(self, row_places_N: Ints) -> tuple[Ints, Ints | None]:
        """Where tokens of the whole packed row lie among this rank's, [M], and which of the N these are; None: all."""
        if self.pieces is None:
            return row_places_N, None
        (first, first_end), (second, second_end) = self.pieces
        is_first_N = (row_places_N >= first) & (row_places_N < first_end)
        is_second_N = (row_places_N >= second) & (row_places_N < second_end)
        own_N = np.where(is_first_N, row_places_N - first, row_places_N - second + first_end - first)
        which_M = np.flatnonzero(is_first_N | is_second_N)
        return own_N[which_M], which_M

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
    predictors_M: Tensor
    """[M] int64, place of the token before each trained token in inputs.token_ids_RT, flattened."""
    predicted_M: Tensor | None
    """[M] int64, which of the N trained tokens these are; None: all of them."""
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

    def own(self, values_N: Tensor) -> Tensor:
        """[M, ...] of values of the trained tokens those that this rank predicts."""
        return values_N if self.predicted_M is None else values_N[self.predicted_M]

    def whole(self, values_CM: Tensor) -> Tensor:
        """[C, N] what all ranks that share the row found of the tokens that each predicts; a collective of theirs."""
        if self.predicted_M is None:
            return values_CM
        documents = self.inputs.documents
        assert documents is not None
        assert documents.peers is not None
        return whole_batch(values_CM, self.predicted_M, len(self.labels_N), documents.peers)


def micro_batches(
    batch: Batch,
    rows: Ints,
    max_tokens: int,
    device: torch.device,
    *,
    is_packed: bool,
    share: Share | None = None,
    shares_prompts: bool = False,
) -> Iterator[MicroBatch]:
    """The given rows in micro-batches of at most `max_tokens` tokens, padding included where there is any.

    A row that is longer by itself is a micro-batch of its own.

    Args:
        share: this rank's part of every packed row; None: all of it.
        shares_prompts: read the prompt of several rows once, where rows are packed and no rank shares them.
    """
    # The last trained token of a row is predicted, never read, so the row ends before it.
    lengths = batch.positions_N[batch.starts_R[rows + 1] - 1]
    if is_packed and shares_prompts and share is None:
        prompts = find_prompts(batch, rows, lengths)
        if prompts.lengths_R.any():
            yield from _behind_prompts(batch, rows, lengths, prompts, max_tokens, device)
            return
    parts = (packing.packed if is_packed else packing.padded)(lengths, max_tokens)
    for part in parts:
        if is_packed:
            inputs = _one_after_another(batch, rows[part], lengths[part], device, share)
        else:
            inputs = _side_by_side(batch, rows[part], lengths[part], device)
        yield _micro_batch(batch, inputs, device)


def empty_micro_batch(device: torch.device, *, is_packed: bool, share: Share | None = None) -> MicroBatch:
    """Tokens that are not trained: for a rank that has fewer micro-batches than another.

    Ranks that share parameters gather them together, so each runs as many passes as the others.
    """
    num_tokens = 1 if share is None else share.multiple
    zero_N, no_rows = torch.zeros(1, dtype=torch.int64, device=device), np.zeros(0, dtype=np.int64)
    own = None if share is None else zero_N[: int(share.rank == 0)]
    zeros_1T = torch.zeros(
        1, num_tokens if share is None else num_tokens // share.size, dtype=torch.int64, device=device
    )
    return MicroBatch(
        inputs=Inputs(
            zeros_1T,
            positions_RT=zeros_1T if is_packed else None,
            documents=Documents.of([1] * num_tokens, device, share) if is_packed else None,
            starts_R=no_rows,
            rows_R=no_rows,
            lengths_R=no_rows,
            pieces=None if share is None else share.of(num_tokens),
        ),
        predictors_M=zero_N if own is None else own,
        predicted_M=own,
        labels_N=zero_N,
        slots_N=zero_N,
        index_N=no_rows,
        mask_RS=torch.zeros(1, 1, dtype=torch.bool, device=device),
        sampler_RS=torch.zeros(1, 1, device=device),
        lags_RS=torch.zeros(1, 1, dtype=torch.int64, device=device),
        lags=(),
        sources=(),
        source_N=zero_N,
    )


def _behind_prompts(
    batch: Batch, rows: Ints, lengths: Ints, prompts: Prompts, max_tokens: int, device: torch.device
) -> Iterator[MicroBatch]:
    for part in packing.packed_by_prompt(lengths, prompts.of_R, prompts.lengths_R, max_tokens):
        own = prompts.of(part)
        if not own.lengths_R.any():
            yield _micro_batch(batch, _one_after_another(batch, rows[part], lengths[part], device, None), device)
            continue
        layout = lay_out(batch, rows[part], lengths[part], own, device)
        inputs = Inputs(
            torch.from_numpy(layout.token_ids_T[None]).to(device),
            positions_RT=torch.from_numpy(layout.positions_T[None]).to(device),
            documents=layout.documents,
            starts_R=layout.own_starts_R,
            rows_R=rows[part],
            lengths_R=lengths[part],
            layout=layout,
        )
        yield _micro_batch(batch, inputs, device)


def _one_after_another(batch: Batch, rows: Ints, lengths: Ints, device: torch.device, share: Share | None) -> Inputs:
    token_ids_T = np.concatenate(
        [batch.rows[row].token_ids[:length] for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
    ).astype(np.int64)
    starts_R = np.cumsum(lengths) - lengths
    positions_T = np.arange(len(token_ids_T)) - np.repeat(starts_R, lengths)
    documents, num_missing = lengths.tolist(), 0 if share is None else -len(token_ids_T) % share.multiple
    if num_missing:
        # What makes the row divisible is a document of its own, which predicts nothing.
        documents.append(num_missing)
        token_ids_T = np.pad(token_ids_T, (0, num_missing))
        positions_T = np.concatenate([positions_T, np.arange(num_missing)])
    pieces = None if share is None else share.of(len(token_ids_T))

    def own(values_T: Ints) -> Tensor:
        kept = values_T if pieces is None else np.concatenate([values_T[slice(*piece)] for piece in pieces])
        return torch.from_numpy(kept[None]).to(device)

    experts_TLK = recorded_experts(batch, rows, starts_R, lengths, len(token_ids_T))
    return Inputs(
        own(token_ids_T),
        positions_RT=own(positions_T),
        documents=Documents.of(documents, device, share),
        starts_R=starts_R,
        rows_R=rows,
        lengths_R=lengths,
        pieces=pieces,
        experts_MLK=None if experts_TLK is None else own(experts_TLK)[0],
    )


def _side_by_side(batch: Batch, rows: Ints, lengths: Ints, device: torch.device) -> Inputs:
    width = int(lengths.max())
    token_ids_RT = np.zeros((len(rows), width), dtype=np.int64)
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        token_ids_RT[place, :length] = batch.rows[row].token_ids[:length]
    starts_R = np.arange(len(rows)) * width
    experts_TLK = recorded_experts(batch, rows, starts_R, lengths, token_ids_RT.size)
    return Inputs(
        torch.from_numpy(token_ids_RT).to(device),
        positions_RT=None,
        documents=None,
        starts_R=starts_R,
        rows_R=rows,
        lengths_R=lengths,
        experts_MLK=None if experts_TLK is None else torch.from_numpy(experts_TLK).to(device),
    )


def _micro_batch(batch: Batch, inputs: Inputs, device: torch.device) -> MicroBatch:
    rows = inputs.rows_R
    counts_R = batch.starts_R[rows + 1] - batch.starts_R[rows]
    place_N = np.repeat(np.arange(len(rows)), counts_R)
    within_N = np.arange(int(counts_R.sum())) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
    index_N = batch.starts_R[rows][place_N] + within_N
    shape = (len(rows), int(counts_R.max()))
    slots_N = place_N * shape[1] + within_N
    before_N = batch.positions_N[index_N] - 1
    row_places_N = (
        inputs.starts_R[place_N] + before_N if inputs.layout is None else inputs.layout.places(place_N, before_N)
    )
    predictors_M, predicted_M = inputs.places(row_places_N)

    def grid(values_N: npt.NDArray[np.generic]) -> Tensor:
        filled = np.zeros(shape, dtype=values_N.dtype)
        filled.reshape(-1)[slots_N] = values_N
        return torch.from_numpy(filled).to(device)

    return MicroBatch(
        inputs=inputs,
        predictors_M=torch.from_numpy(predictors_M).to(device),
        predicted_M=None if predicted_M is None else torch.from_numpy(predicted_M).to(device),
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
