"""A row that grew turn by turn is the one that a builder makes of the same tokens."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.data.routed_experts import COLUMN
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.gateway.session_row import joined
from buffer import Span

turns = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50), max_size=4),
        st.lists(st.tuples(st.integers(0, 50), st.floats(-9, -0.125, width=32)), min_size=1, max_size=5),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(turns, st.booleans())
def test_joined_turns_are_the_row_of_a_builder(given_turns: list, records_experts: bool) -> None:  # type: ignore[type-arg]
    whole = TrajectoryBuilder()
    whole.begin_row([1, 2, 3])
    row = None
    for context, sampled, version in given_turns:
        whole.append_context(context)
        turn = TrajectoryBuilder()
        turn.begin_row(whole.token_ids)
        ids, logprobs = [id for id, _ in sampled], [logprob for _, logprob in sampled]
        experts = None
        if records_experts:
            read = len(whole.token_ids) + len(ids) - 1
            experts = np.arange(read, dtype=np.int16).reshape(read, 1, 1) + np.int16(version)
        for builder in (whole, turn):
            builder.append_sampled(ids, logprobs, [Span(version, version, len(ids))], experts)
        (sampled_row,) = turn.rows()
        row = sampled_row if row is None else joined(row, sampled_row)
    (expected,) = whole.rows()
    assert row is not None
    # The first turn's context belongs to the prompt of a session's row.
    assert row.num_prompt_tokens == 3 + len(given_turns[0][0])
    for name in ("token_ids", "mask", "logprobs"):
        assert np.array_equal(getattr(row, name), getattr(expected, name)), name
    assert row.spans == expected.spans
    if records_experts:
        assert np.array_equal(row.columns[COLUMN], expected.columns[COLUMN])
