"""What an environment is: it gives the first messages, answers each of the model's turns, and ends with a reward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from asyncrl.config import RolloutConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.rewards.result import Reward

__all__ = ["Environment", "EnvironmentDeps", "Message", "Resumable", "Reward", "StepResult", "turn_of"]

Message = Mapping[str, Json]


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
    """One episode. In envs/single_turn, multi_turn_math, tool_math; held to tests/contract/test_environments.py."""

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

    Without it an episode can be continued within its first turn only, since a reset is all that this needs. All
    environments of this package have it; held to tests/contract/test_environments.py.
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


@dataclass(frozen=True)
class EnvironmentDeps:
    """What environments are made from; shared by all episodes of a worker."""

    rewards: RewardPool
    config: RolloutConfig


def turn_of(state: Mapping[str, object]) -> int:
    """The turns that a snapshot has behind it, of an environment that keeps nothing else.

    Raises:
        ValueError: it says no number.
    """
    turn = state["turn"]
    if not isinstance(turn, int):
        raise ValueError(f"the snapshot says turn {turn!r}, expected a number")
    return turn
