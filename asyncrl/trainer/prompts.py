"""Rows that begin with the same prompt, as the answers of a group do: the model reads it once for all of them.

A token's states follow from what stands before it alone, so the prompt's are the same in every row. The packed row has
each shared prompt once, and then what each row has of its own:

    row         P1 P2 | own own own | own own own | own own | row that shares nothing
    documents   P1, P2, P1 + own, P1 + own, P2 + own, the row: of P + own the queries are those of `own` alone

The gradient of a prompt's keys and values is the sum over the rows that look at them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from asyncrl.trainer.batch import Batch, Ints
from asyncrl.trainer.documents import Documents, Repeats
from asyncrl.trainer.routing import is_recorded

_WORTH = 1 / 16
"""Smallest share of the tokens that has to be saved: keys and values are copied in every layer, forward and back."""


@dataclass(frozen=True)
class Prompts:
    """Prompts of R rows.

    Attributes:
        of_R: number of each row's prompt; rows have the same one where their prompts are equal.
        lengths_R: tokens of it; 0 where no other row has it.
    """

    of_R: Ints
    lengths_R: Ints

    @classmethod
    def none(cls, num_rows: int) -> "Prompts":
        """Every row for itself."""
        return cls(np.arange(num_rows), np.zeros(num_rows, dtype=np.int64))

    def of(self, part: Ints) -> "Prompts":
        """Those of some of the rows: a prompt that only one of them has is not shared any more."""
        lengths = self.lengths_R[part]
        if not lengths.any():
            return Prompts.none(len(part))
        _, of_R, counts = np.unique(self.of_R[part], return_inverse=True, return_counts=True)
        return Prompts(of_R.astype(np.int64), np.where(counts[of_R] > 1, lengths, 0))


def find_prompts(batch: Batch, rows: Ints, lengths: Ints) -> Prompts:
    """Which rows share a prompt, by its tokens; none do where it would hardly save any.

    Nor where the server recorded experts: it may have sent the tokens of a prompt elsewhere in each row.

    Args:
        lengths: tokens of each row that are read.
    """
    if is_recorded(batch, rows):
        return Prompts.none(len(rows))
    keys = []
    for row, length in zip((batch.rows[row] for row in rows.tolist()), lengths.tolist(), strict=True):
        # A row that ends within its prompt has another one: what is read of it.
        keys.append(row.token_ids[: min(row.num_prompt_tokens, length)].tobytes())
    counts, numbers = Counter(keys), {key: number for number, key in enumerate(dict.fromkeys(keys))}
    itemsize = batch.rows[0].token_ids.itemsize if batch.rows else 1
    lengths_R = np.array([len(key) // itemsize if counts[key] > 1 else 0 for key in keys], dtype=np.int64)
    saved = sum((count - 1) * (len(key) // itemsize) for key, count in counts.items())
    if saved < _WORTH * int(lengths.sum()):
        return Prompts.none(len(rows))
    return Prompts(np.array([numbers[key] for key in keys], dtype=np.int64), lengths_R)


@dataclass(frozen=True)
class Layout:
    """Where the tokens of R rows lie in a packed row that has their prompts once.

    Attributes:
        token_ids_T: int64.
        positions_T: int64, of each token in the rows that it is of.
        own_starts_R: where a row's own tokens begin; those of a row that shares nothing are all of it.
        prompt_starts_R: where its prompt begins.
        prompt_lengths_R: tokens of it; 0: the row shares nothing.
        documents: what sees what.
    """

    token_ids_T: Ints
    positions_T: Ints
    own_starts_R: Ints
    prompt_starts_R: Ints
    prompt_lengths_R: Ints
    documents: Documents

    @property
    def saved(self) -> tuple[int, ...]:
        """Tokens of each prompt that is not read because another row has it."""
        shared = self.prompt_lengths_R > 0
        _, first = np.unique(self.prompt_starts_R[shared], return_index=True)
        return tuple(np.delete(self.prompt_lengths_R[shared], first).tolist())

    def places(self, rows_N: Ints, positions_N: Ints) -> Ints:
        """[N] where the token at a position of a row lies.

        Args:
            rows_N: which of the R rows.
        """
        of_prompt_N = self.prompt_lengths_R[rows_N]
        own_N = self.own_starts_R[rows_N] + positions_N - of_prompt_N
        return np.where(positions_N < of_prompt_N, self.prompt_starts_R[rows_N] + positions_N, own_N)


def lay_out(batch: Batch, rows: Ints, lengths: Ints, prompts: Prompts, device: torch.device) -> Layout:
    """Lay rows one after another behind the prompts that they share.

    Args:
        rows: which of the batch's rows, R of them.
        lengths: [R] tokens of each that are read.
        prompts: of these rows.
    """
    first, copies = _first_and_copies(prompts)
    # Prompts of equally many rows side by side, and of these the equally long: see documents.Repeats.
    order_P = sorted(first, key=lambda number: (copies[number], prompts.lengths_R[first[number]]))
    pieces, starts_P, end = [], {}, 0
    for number in order_P:
        row, length = first[number], int(prompts.lengths_R[first[number]])
        pieces.append((row, 0, length))
        starts_P[number], end = end, end + length
    num_shared, own_starts = end, np.zeros(len(rows), dtype=np.int64)
    # Equally long ones side by side: attention takes them together on a CPU.
    for row in np.lexsort((-prompts.lengths_R, -lengths)).tolist():
        begin, own_starts[row] = int(prompts.lengths_R[row]), end
        if int(lengths[row]) > begin:
            pieces.append((row, begin, int(lengths[row])))
        end += int(lengths[row]) - begin
    prompt_starts = np.array([starts_P.get(number, 0) for number in prompts.of_R.tolist()], dtype=np.int64)
    ids = [batch.rows[rows[row]].token_ids[begin:stop] for row, begin, stop in pieces]
    index = _keys(pieces, len(order_P), own_starts, prompt_starts, prompts)
    return Layout(
        token_ids_T=np.concatenate(ids).astype(np.int64),
        positions_T=np.concatenate([np.arange(begin, stop) for _, begin, stop in pieces]),
        own_starts_R=own_starts,
        prompt_starts_R=prompt_starts,
        prompt_lengths_R=prompts.lengths_R,
        documents=Documents.behind_prompts(
            [(stop - begin, stop) for _, begin, stop in pieces], Repeats.of(index, num_shared, device), device
        ),
    )


def _first_and_copies(prompts: Prompts) -> tuple[dict[int, int], Counter[int]]:
    """A row that has each shared prompt, and how many have it."""
    first: dict[int, int] = {}
    copies: Counter[int] = Counter()
    for row, (number, length) in enumerate(zip(prompts.of_R.tolist(), prompts.lengths_R.tolist(), strict=True)):
        if length:
            first.setdefault(number, row)
            copies[number] += 1
    return first, copies


def _keys(
    pieces: Sequence[tuple[int, int, int]], num_prompts: int, own_starts: Ints, prompt_starts: Ints, prompts: Prompts
) -> Ints:
    """Where among the tokens the keys of each document lie, document after document."""
    parts = []
    for number, (row, begin, stop) in enumerate(pieces):
        start = int(prompt_starts[row])
        if number < num_prompts:
            parts.append(np.arange(start, start + stop))
            continue
        parts += [np.arange(start, start + begin), np.arange(own_starts[row], own_starts[row] + stop - begin)]
    return np.concatenate(parts)
