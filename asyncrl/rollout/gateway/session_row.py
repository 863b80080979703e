"""One row of a session: a context that only grew, with the tokens that were sampled in it.

Rows are kept as arrays, 9 bytes a token, and never change: a turn that ends adds a new row in place of the one it went
on from, so that a turn that is cut off leaves nothing behind.
"""

from dataclasses import dataclass

from asyncrl.rollout.gateway.messages import MessageKey
from buffer import Row

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
