"""What an environment is: it gives the first messages, answers each of the model's turns, and ends with a reward."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from asyncrl.config import RolloutConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.resources import Resources
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.tools.parsers import PARSERS, ParsedTurn, parse_turn

__all__ = [
    "Closable",
    "Environment",
    "EnvironmentDeps",
    "Message",
    "Resumable",
    "Reward",
    "ShowsTools",
    "Staged",
    "StepResult",
    "turn_of",
]

Message = Mapping[str, Json]
Stage = Literal["processing_tools", "interacting"]
"""What an episode is busy with during a step: see AgentState."""
_READS_HERMES = partial(parse_turn, PARSERS["hermes"])


@dataclass(frozen=True)
class StepResult:
    """What the environment says to a turn: messages for the next one, or the end with its reward."""

    messages: tuple[Message, ...] = ()
    done: bool = False
    reward: Reward | None = None

    def __post_init__(self) -> None:
        if self.done != (self.reward is not None) or self.done == bool(self.messages):
            raise ValueError("a step either ends the episode with a reward or goes on with messages")


class Environment(Protocol):
    """One episode. One file each in envs, a row each of ENVIRONMENTS; held to tests/contract/test_environments.py.

    A class attribute `scores_itself = True` says that it asks no reward of the table, so that its rows may have any
    data source.
    `answers_with_tools = True`: its messages may be tools' answers, so the model's template is asked whether it knows
    such before anything is generated. `takes_tools = True`: they are the tools of rollout.tools.
    """

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """Begin: the messages of the first prompt. The same row and seed give the same messages."""
        ...

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """Answer the model's turn.

        Args:
            text: what the model said, up to its end token.
            finish_reason: `stop` if it ended its turn, `length` if it was cut; a cut turn cannot be answered.
        """
        ...


@runtime_checkable
class Resumable(Protocol):
    """What an environment has besides, whose episodes another worker may go on with after one of its turns.

    Without it an episode can be continued within its first turn only, since a reset is all that this needs. Held to
    tests/contract/test_environments.py.
    """

    def snapshot(self) -> Mapping[str, object] | None:
        """What `restore` needs to come back here: plain JSON data, a few kB at most.

        Asked for after reset and after each step that goes on, never during one.
        Returns:
            None: nobody can go on from here; a lost worker's episode will start over.
        """
        ...

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """Begin where the snapshot was taken, in another process; steps from here on answer as they would have there.

        Args:
            state: the snapshot.
        Returns:
            The messages of the first prompt, as `reset` gives them.
        Raises:
            Exception: whatever it is, it is logged and the episode starts over.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """What an environment has besides, whose episode holds more than memory: a process, a directory, a session."""

    async def close(self) -> None:
        """Give it back. Called once for every environment that was made, whatever became of its episode: ended, failed,
        parked, cancelled, or never reset. It may be cancelled, and must then not leave anything running either.
        What it raises is logged and fails nothing."""
        ...


@runtime_checkable
class ShowsTools(Protocol):
    """What an environment has besides, whose prompt shows other tools than its row does."""

    @property
    def tools(self) -> tuple[Mapping[str, Json], ...]:
        """Schemas of the tools that the prompt shows; asked for after reset or restore."""
        ...


@runtime_checkable
class Staged(Protocol):
    """What an environment has besides, that says whether a step runs tools or answers as the user; one that does not
    say is taken to answer."""

    def watch(self, enter: Callable[[Stage], None]) -> None:
        """Call `enter` whenever a step takes up one of the two. Called once, before the first step."""
        ...


@dataclass(frozen=True)
class EnvironmentDeps:
    """What environments are made from; shared by all episodes of a worker.

    Attributes:
        rewards: scores answers by the row's data source.
        config: the section `rollout`.
        resources: what is made once and closed with the worker, such as a process that many episodes talk to.
        read_turn: finds the tool calls in a model's turn, in the form that it writes them.
        counts: what happened, by name, for people; of all episodes together.
    """

    rewards: RewardPool
    config: RolloutConfig
    resources: Resources = field(default_factory=Resources)
    read_turn: Callable[[str], ParsedTurn] = _READS_HERMES
    counts: Counter[str] = field(default_factory=Counter)


def turn_of(state: Mapping[str, object]) -> int:
    """The turns that a snapshot has behind it, of an environment that keeps nothing else.

    Raises:
        ValueError: it says no number.
    """
    turn = state["turn"]
    if not isinstance(turn, int):
        raise ValueError(f"the snapshot says turn {turn!r}, expected a number")
    return turn
