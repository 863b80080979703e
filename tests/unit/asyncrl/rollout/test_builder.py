"""From what was sampled to what is trained on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.data.routed_experts import COLUMN
from asyncrl.envs.base import Reward
from asyncrl.rollout.builder import TrajectoryBuilder
from buffer import Span, Trajectory, TrajectoryError

turns = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50), max_size=4),
        st.lists(st.tuples(st.integers(0, 50), st.floats(-9, -0.125, width=32)), min_size=1, max_size=5),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=5,
)


def finished(builder: TrajectoryBuilder, reward: Reward | None = None) -> Trajectory:
    return builder.finish(reward or Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})


def test_only_sampled_tokens_are_marked_and_have_logprobs() -> None:
    """The tokens between two answers are not trained (B107)."""
    builder = TrajectoryBuilder()
    builder.begin_row([10, 11])
    builder.append_sampled([1, 2, 3], [-0.1, -0.2, -0.3], [Span(5, 7, 3)])
    builder.append_context([20, 21, 22, 23, 24])
    builder.append_sampled([4, 5], [-0.4, -0.5], [Span(5, 7, 2)])
    (row,) = finished(builder).rows
    assert row.token_ids.tolist() == [10, 11, 1, 2, 3, 20, 21, 22, 23, 24, 4, 5]
    assert row.mask.tolist() == [False] * 2 + [True] * 3 + [False] * 5 + [True] * 2
    np.testing.assert_array_equal(
        row.logprobs, np.array([0, 0, -0.1, -0.2, -0.3, 0, 0, 0, 0, 0, -0.4, -0.5], dtype=np.float32)
    )
    assert row.num_prompt_tokens == 2
    assert row.spans == (Span(5, 7, 5),), "a turn boundary starts no new span"
    assert builder.num_sampled == 5


def test_ids_are_those_that_were_sampled_not_those_of_their_text() -> None:
    """Nothing is decoded and encoded again (B105)."""
    builder = TrajectoryBuilder()
    builder.begin_row([1])
    builder.append_sampled([260, 77, 77, 80], [-0.1] * 4, [Span(0, 0, 4)])
    assert finished(builder).rows[0].token_ids.tolist() == [1, 260, 77, 77, 80]


def test_an_end_token_is_trained_on_like_any_other() -> None:
    """Also where it pads elsewhere: the mask is of what was sampled, not of ids (B114)."""
    builder = TrajectoryBuilder()
    builder.begin_row([1])
    builder.append_sampled([5, 9, 2], [-0.1] * 3, [Span(0, 0, 3)])
    assert finished(builder).rows[0].mask.tolist() == [False, True, True, True]


def test_a_version_change_inside_an_answer_splits_the_spans_and_the_oldest_is_known_meanwhile() -> None:
    builder = TrajectoryBuilder()
    builder.begin_row([1])
    assert builder.oldest_version is None
    builder.append_sampled([5, 6, 7], [-0.1] * 3, [Span(8, 80, 1), Span(9, 90, 2)])
    builder.append_sampled([8], [-0.1], [Span(9, 90, 1)])
    assert builder.oldest_version == 8
    assert finished(builder).rows[0].spans == (Span(8, 80, 1), Span(9, 90, 3))


def test_a_rewritten_context_is_a_row_of_its_own_in_one_trajectory() -> None:
    builder = TrajectoryBuilder()
    builder.begin_row([1])
    builder.append_sampled([5], [-0.1], [Span(8, 80, 1)])
    builder.begin_row([2, 3])
    builder.append_sampled([6, 7], [-0.1] * 2, [Span(9, 90, 2)])
    trajectory = finished(builder)
    assert [row.token_ids.tolist() for row in trajectory.rows] == [[1, 5], [2, 3, 6, 7]]
    assert trajectory.num_sampled == 3


def test_a_failed_reward_is_no_reward_with_its_reason() -> None:
    builder = TrajectoryBuilder()
    builder.begin_row([1])
    trajectory = finished(builder, Reward(None, "timed out"))
    assert trajectory.reward is None
    assert trajectory.reward_error == "timed out"
    assert trajectory.num_sampled == 0


def test_spans_that_do_not_cover_the_tokens_are_refused() -> None:
    builder = TrajectoryBuilder()
    builder.begin_row([1])
    builder.append_sampled([5, 6], [-0.1] * 2, [Span(8, 80, 1)])
    with pytest.raises(TrajectoryError):
        finished(builder)


def test_restored_rows_go_on_as_if_they_had_never_been_parked() -> None:
    def begin(builder: TrajectoryBuilder) -> None:
        builder.begin_row([1, 2])
        builder.append_sampled([5], [-0.1], [Span(8, 80, 1)])
        builder.append_context([30])
        builder.begin_row([3])
        builder.append_sampled([6, 7], [-0.2, -0.3], [Span(7, 70, 1), Span(9, 90, 1)])
        builder.append_context([31, 32])
        builder.append_sampled([8], [-0.4], [Span(9, 90, 1)])

    def end(builder: TrajectoryBuilder) -> None:
        builder.append_sampled([9], [-0.5], [Span(9, 90, 1)])
        builder.append_context([33])

    older: list[str] = []
    whole, restored = TrajectoryBuilder(), TrajectoryBuilder(on_older=lambda: older.append("older"))
    begin(whole)
    restored.restore(whole.rows())
    assert older == ["older"], "the group's age is known at once"
    assert (restored.oldest_version, restored.num_sampled, restored.row_index) == (7, 4, 1)
    assert restored.prompt_ids == whole.prompt_ids == [1, 2]
    for builder in (whole, restored):
        end(builder)
    assert finished(restored) == finished(whole)
    restored.clear()
    assert (restored.oldest_version, restored.num_sampled, restored.token_ids, restored.row_index) == (None, 0, [], 0)


@settings(max_examples=40, deadline=None)
@given(turns, st.booleans())
def test_a_row_that_is_restored_before_each_turn_is_that_of_one_builder(
    given_turns: list[tuple[list[int], list[tuple[int, float]], int]], records_experts: bool
) -> None:
    whole, grown = TrajectoryBuilder(), TrajectoryBuilder()
    for builder in (whole, grown):
        builder.begin_row([1, 2, 3])
    for context, sampled, version in given_turns:
        ids, logprobs = [id for id, _ in sampled], [logprob for _, logprob in sampled]
        before, grown = grown, TrajectoryBuilder()
        grown.restore(before.rows())
        for builder in (whole, grown):
            builder.append_context(context)
            experts = None
            if records_experts:
                read = len(builder.token_ids) + len(ids) - 1
                experts = np.arange(read, dtype=np.int16).reshape(read, 1, 1) + np.int16(version)
            builder.append_sampled(ids, logprobs, [Span(version, version, len(ids))], experts)
        assert grown.token_ids == whole.token_ids
    (row,), (expected,) = grown.rows(), whole.rows()
    assert row == expected
    assert (COLUMN in row.columns) == records_experts


def test_the_prompt_of_an_episode_is_that_of_its_first_row() -> None:
    builder = TrajectoryBuilder()
    assert builder.prompt_ids == []
    builder.begin_row([4, 5])
    builder.append_sampled([6], [-0.1], [Span(8, 80, 1)])
    assert builder.prompt_ids == [4, 5]
