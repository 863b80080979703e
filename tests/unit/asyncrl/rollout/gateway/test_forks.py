"""What a request is to the rows of its session."""

import numpy as np
import pytest

from asyncrl.rollout.gateway.forks import origin_of
from asyncrl.rollout.gateway.messages import MessageKey
from asyncrl.rollout.gateway.session_row import AnswerEnd, SessionRow
from buffer import Row, Span


def keys(text: str) -> tuple[MessageKey, ...]:
    """A key for each letter: capitals are answers. The first stands for the tools."""
    return tuple(MessageKey(letter.encode()) for letter in text)


def row(number: int, text: str) -> SessionRow:
    ids = np.arange(1, len(text) + 1, dtype=np.uint32)
    mask = np.array([letter.isupper() for letter in text])
    tokens = Row(ids, mask, np.where(mask, -1, 0).astype(np.float32), (Span(1, 1, int(mask.sum())),), 1)
    ends = tuple(AnswerEnd(at + 1, at + 1) for at, letter in enumerate(text) if letter.isupper())
    return SessionRow(number, keys(text), ends, tokens)


@pytest.mark.parametrize(
    ("rows", "request_", "expected"),
    [
        ([], "ts", ("first", None, 0)),
        (["tsA"], "tsAu", ("continued", 0, 3)),
        (["tsAuB"], "tsAuBvw", ("continued", 0, 5)),
        (["tsAuB"], "tsAu", ("retry", 0, 3)),
        (["tsA"], "ts", ("retry", None, 0)),
        (["tsAuB"], "tsAv", ("edited", 0, 3)),
        (["tsAuB"], "tsAuCx", ("edited", 0, 3)),
        (["tsAuB"], "tsx", ("rewritten", None, 0)),
        (["tsAuB"], "tx", ("separate", None, 0)),
        (["tsAuB"], "ysAuBv", ("separate", None, 0)),
        (["tsAuB", "tsAvC"], "tsAvCw", ("continued", 1, 5)),
        (["tsAuB", "txD"], "txDz", ("continued", 1, 3)),
        (["tsA", "tsA"], "tsAu", ("continued", 0, 3)),
    ],
)
def test_a_request_goes_on_from_the_row_with_which_it_shares_most(
    rows: list[str], request_: str, expected: tuple[str, int | None, int]
) -> None:
    made = [row(number, text) for number, text in enumerate(rows)]
    origin = origin_of(keys(request_), made, ())
    found = None if origin.row is None else origin.row.number
    assert (origin.kind, found, origin.end.num_keys) == expected


def test_a_row_that_a_turn_in_flight_goes_on_from_is_forked() -> None:
    assert origin_of(keys("tsAu"), [row(0, "tsA")], {0}).kind == "parallel"


def test_a_request_beside_the_first_one_is_no_first_one() -> None:
    assert origin_of(keys("ts"), [], {0}).kind == "separate"
