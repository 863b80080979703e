"""One row of a session: a context that only grew, with the tokens that were sampled in it.

Rows are kept as arrays, 9 bytes a token, and never change: a turn that ends adds a new row in place of the one it went
on from, so that a turn that is cut off leaves nothing behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asyncrl.data.routed_experts import COLUMN
from asyncrl.rollout.gateway.messages import MessageKey
from buffer import Row, Span

_KEY_BYTES = 160  # of one MessageKey with its digests
_FIXED_BYTES = 1024  # of the objects around the arrays


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """Where an answer ends in a row: keys (tools and messages) and tokens up to and with it."""

    num_keys: int
    num_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class SessionRow:
    """A row with the conversation that it is of.

    Attributes:
        number: in its session, from 0; its seeds are drawn from it.
        keys: of the tools and of every message, the last answer included.
        ends: of the answers in it, those before a fork included; the last one is the end of the row.
        row: its tokens. Sampled ones of before a fork are context here: they are trained in the row they are from.
    """

    number: int
    keys: tuple[MessageKey, ...]
    ends: tuple[AnswerEnd, ...]
    row: Row

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about."""
        row = self.row
        arrays = (row.token_ids, row.mask, row.logprobs, *row.columns.values())
        return _FIXED_BYTES + _KEY_BYTES * len(self.keys) + sum(array.nbytes for array in arrays)


def joined(earlier: Row, turn: Row) -> Row:
    """The row that `earlier` becomes by a turn.

    Args:
        turn: all tokens of the row, of which only those of the turn count as sampled; begins with those of `earlier`.
    Raises:
        TrajectoryError: ids, logprobs or spans contradict each other.
    """
    size = len(earlier.token_ids)
    assert np.array_equal(turn.token_ids[:size], earlier.token_ids), "a turn goes on from its row"
    mask, logprobs = turn.mask.copy(), turn.logprobs.copy()
    mask[:size], logprobs[:size] = earlier.mask, earlier.logprobs
    spans = _joined_spans(earlier.spans, turn.spans)
    return Row(turn.token_ids, mask, logprobs, spans, earlier.num_prompt_tokens, _joined_columns(earlier, turn))


def _joined_spans(earlier: tuple[Span, ...], later: tuple[Span, ...]) -> tuple[Span, ...]:
    if earlier and later and (earlier[-1].version, earlier[-1].digest) == (later[0].version, later[0].digest):
        both = Span(later[0].version, later[0].digest, earlier[-1].num_tokens + later[0].num_tokens)
        return (*earlier[:-1], both, *later[1:])
    return (*earlier, *later)


def _joined_columns(earlier: Row, turn: Row) -> Mapping[str, npt.NDArray[np.generic]]:
    """The recorded experts, the only column there is: what was known of earlier tokens stays, because their successors
    were sampled with it."""
    if COLUMN not in turn.columns or COLUMN not in earlier.columns:
        return turn.columns
    experts, before = turn.columns[COLUMN].copy(), earlier.columns[COLUMN].astype(np.int16)
    num_read = int(np.flatnonzero((before >= 0).any(axis=(1, 2))).max(initial=-1)) + 1
    experts[:num_read] = before[:num_read]
    return {COLUMN: experts}
