"""The seam of rewards: something with a name that scores answers, and says how it went when it does not."""

from dataclasses import dataclass
from typing import Protocol

from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards.result import Reward

SCORED = "scored"


@dataclass(frozen=True)
class Outcome:
    """How a call of a scorer went: `scored`, or a word for the failure, whose text is the reward's error."""

    kind: str
    reward: Reward
    cached: bool = False

    @classmethod
    def failed(cls, kind: str, text: str, *, says_kind: bool = True) -> "Outcome":
        """A reward that failed."""
        return cls(kind, Reward(None, f"{kind}: {text}" if says_kind else text))


class Scorer(Protocol):
    """In processes (a function or the table), http (a reward server), judge, cache (around another one)."""

    name: str

    async def start(self) -> None:
        """Be ready, or refuse: called once, before anything is generated. Raises RewardError."""
        ...

    async def score(self, row: PromptRow, text: str) -> Outcome:
        """Score an answer to a row's prompt. Bounded in time.

        Raises:
            RewardError: it cannot score any row, and never will; the configuration is at fault.
        """
        ...

    def kill(self) -> None:
        """End at once what it has started. Calls in flight fail."""
        ...

    async def close(self) -> None:
        """Close its connections, after kill."""
        ...
