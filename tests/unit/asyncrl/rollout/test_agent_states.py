"""The states of episodes: only what may follow follows, and the counts are those of the episodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.rollout.agent_states import TRANSITIONS, AgentState, AgentStates, IllegalTransition


def test_every_state_has_its_row_and_the_end_is_the_end() -> None:
    assert set(TRANSITIONS) == set(AgentState)
    assert TRANSITIONS[AgentState.TERMINATED] == frozenset()
    assert all(AgentState.TERMINATED in TRANSITIONS[state] for state in AgentState if TRANSITIONS[state])
    assert all(AgentState.PENDING not in following for following in TRANSITIONS.values()), "an episode begins once"


@given(st.lists(st.sampled_from(AgentState), max_size=8))
def test_what_is_not_in_the_table_is_refused_and_changes_nothing(path: list[AgentState]) -> None:
    states = AgentStates()
    with states.episode() as episode:
        for state in path:
            before, counts = episode.now, states.facts()
            if state in TRANSITIONS[before]:
                episode.enter(state)
                assert episode.now is state
            else:
                with pytest.raises(IllegalTransition, match=f"is {before} cannot become {state}"):
                    episode.enter(state)
                assert (episode.now, states.facts()) == (before, counts)
        assert sum(states.facts().values()) == 1
    assert states.facts()["episodes_terminated"] == 1


def counted(states: AgentStates) -> dict[str, int]:
    """The states that any episode is in, or was ended in."""
    return {name.removeprefix("episodes_"): int(count) for name, count in states.facts().items() if count}


def test_episodes_are_counted_by_state_and_leave_it_when_they_fail() -> None:
    states = AgentStates()

    def fails() -> None:
        with states.episode() as episode:
            episode.enter(AgentState.GENERATING)
            assert counted(states) == {"pending": 1, "generating": 1}
            raise KeyError

    with states.episode():
        with pytest.raises(KeyError):
            fails()
        assert counted(states) == {"pending": 1, "terminated": 1}
    assert counted(states) == {"terminated": 2}
