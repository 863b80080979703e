"""Which row of a session a request goes on from, and where it has to fork into a new one.

A row only grows at its end. A request whose messages are not exactly those of a row, with more behind them, becomes a
row of its own: it shares the tokens up to the last answer that both have, and the rest is rendered once as context.
Nothing that was sampled is ever tokenized again in the row where it is trained.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from asyncrl.rollout.gateway.messages import MessageKey, num_shared
from asyncrl.rollout.gateway.session_row import AnswerEnd, SessionRow

Kind = Literal["first", "continued", "parallel", "retry", "edited", "rewritten", "separate"]
"""What a request is to the rows before it:

first      the session's first row
continued  a row, with more messages behind its last answer; the only kind that is no fork
parallel   as continued, but another request of that row is in flight
retry      asked before, and asked again
edited     leaves a row after an answer that both have: the harness changed or dropped what came later
rewritten  begins like a row, but shares no answer with it: a compacted context
separate   begins otherwise: a sub-agent, or another set of tools
"""
_NOTHING = AnswerEnd(0, 0)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the row of a request comes from.

    Attributes:
        row: whose tokens it shares; None: none.
        end: the last answer that it shares.
    """

    kind: Kind
    row: SessionRow | None = None
    end: AnswerEnd = _NOTHING


def origin_of(keys: Sequence[MessageKey], rows: Sequence[SessionRow], busy: Collection[int]) -> Origin:
    """Where a request comes from: the row with the longest shared part, the oldest among equals.

    Args:
        keys: of the request; its last message is not an assistant's.
        rows: of the session.
        busy: numbers of the rows that a request in flight goes on from.
    """
    if not rows and not busy:
        return Origin("first")
    best, shared, end = None, 0, _NOTHING
    for row in rows:
        found = num_shared(keys, row.keys)
        answer = _last_within(row, found)
        if best is None or (answer.num_keys, found) > (end.num_keys, shared):
            best, shared, end = row, found, answer
    if best is None or end is _NOTHING:
        # The key of the tools and that of the first message are what a beginning is.
        return Origin("retry" if shared == len(keys) else "rewritten" if shared >= 2 else "separate")
    if end == best.ends[-1]:
        return Origin("parallel" if best.number in busy else "continued", best, end)
    return Origin("retry" if shared == len(keys) else "edited", best, end)


def _last_within(row: SessionRow, num_keys: int) -> AnswerEnd:
    """The last answer of a row that ends within its first `num_keys` keys."""
    return next((end for end in reversed(row.ends) if end.num_keys <= num_keys), _NOTHING)
