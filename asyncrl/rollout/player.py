"""What plays the episodes of a worker: an environment in this process, or a harness outside of it."""

from collections import Counter
from typing import Protocol

from asyncrl.report.speeds import Durations
from asyncrl.rollout.agent_states import AgentStates
from asyncrl.rollout.episode import PromptMemo
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.turns import EpisodeTask
from buffer import Trajectory


class Player(Protocol):
    """Plays one episode. In rollout/episode and rollout/gateway/session_player.

    Attributes:
        counts: what became of episodes, by name.
        states: how many episodes are in each state.
        environment_s: seconds that steps of training prompts took.
    """

    counts: Counter[str]
    states: AgentStates
    environment_s: Durations

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        """Play to the end, from the beginning or from where `progress` is.

        Raises:
            EpisodeFailed: it cannot be finished.
            WaitTimeout: it is given back, at no cost.
            Halted: `progress` was told to halt.
        """
        ...

    async def cut(self, progress: Progress) -> None:
        """Have the episode's request in flight answered as far as it is."""
        ...
