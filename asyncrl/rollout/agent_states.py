"""The states of an episode as data, and how many of a worker's episodes are in each.

    pending -> generating -> processing_tools | interacting -> generating -> ... -> terminated

An episode that another worker had begun may be answered first. A step of the environment begins as interacting; one
that runs tools says so (Staged), and may answer as the user after them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import MappingProxyType


class AgentState(StrEnum):
    """What an episode is busy with.

    pending: its environment is being made or put back. generating: a server samples its turn. processing_tools: the
    calls of its turn run. interacting: its environment answers or scores it. terminated: it ended, well or not.
    """

    PENDING = "pending"
    GENERATING = "generating"
    PROCESSING_TOOLS = "processing_tools"
    INTERACTING = "interacting"
    TERMINATED = "terminated"


TRANSITIONS: Mapping[AgentState, frozenset[AgentState]] = MappingProxyType(
    {
        AgentState.PENDING: frozenset({AgentState.GENERATING, AgentState.INTERACTING, AgentState.TERMINATED}),
        AgentState.GENERATING: frozenset({AgentState.INTERACTING, AgentState.TERMINATED}),
        AgentState.INTERACTING: frozenset(
            {AgentState.GENERATING, AgentState.PROCESSING_TOOLS, AgentState.INTERACTING, AgentState.TERMINATED}
        ),
        AgentState.PROCESSING_TOOLS: frozenset(
            {AgentState.GENERATING, AgentState.INTERACTING, AgentState.PROCESSING_TOOLS, AgentState.TERMINATED}
        ),
        AgentState.TERMINATED: frozenset(),
    }
)


class IllegalTransition(RuntimeError):
    """An episode would go from one state to another that cannot follow it: an error of the loop or an environment."""


class EpisodeState:
    """The state of one episode, counted with the others of its worker."""

    def __init__(self, counts: Counter[AgentState]) -> None:
        self._counts = counts
        self.now = AgentState.PENDING
        counts[self.now] += 1

    def enter(self, state: AgentState) -> None:
        """Go to another state. Raises IllegalTransition."""
        if state not in TRANSITIONS[self.now]:
            raise IllegalTransition(
                f"an episode that is {self.now} cannot become {state}; it may become "
                f"{', '.join(sorted(TRANSITIONS[self.now])) or 'nothing else'}."
            )
        self._counts[self.now] -= 1
        self._counts[state] += 1
        self.now = state


class AgentStates:
    """The episodes of a worker by state; of those that are terminated, how many there were."""

    def __init__(self) -> None:
        self._counts: Counter[AgentState] = Counter()

    @contextmanager
    def episode(self) -> Iterator[EpisodeState]:
        """The state of a new episode, which is terminated when the block ends, however it does."""
        state = EpisodeState(self._counts)
        try:
            yield state
        finally:
            if state.now is not AgentState.TERMINATED:
                state.enter(AgentState.TERMINATED)

    def facts(self) -> dict[str, float]:
        """For a worker's report: episodes_<state>."""
        return {f"episodes_{state}": float(self._counts[state]) for state in AgentState}
