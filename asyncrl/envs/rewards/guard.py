"""When a scorer fails too often to go on: its share of failures over its last calls."""

from collections import deque
from dataclasses import dataclass

from asyncrl.envs.rewards.scorer import SCORED, Outcome
from asyncrl.errors import RewardError


@dataclass(frozen=True)
class FailureLimit:
    """max_share: of the last `window` calls, more failures than this stop the run. Nothing is judged before so many."""

    max_share: float = 0.5
    window: int = 64


class FailureGuard:
    """Watches one scorer. A function that fails often masks the prompts it fails on, without a word."""

    def __init__(self, name: str, limit: FailureLimit) -> None:
        self._name, self._limit = name, limit
        self._failed: deque[bool] = deque(maxlen=limit.window)

    def note(self, outcome: Outcome) -> None:
        """Count a call.

        Raises:
            RewardError: naming the scorer, the share and the last failure.
        """
        failed = outcome.kind != SCORED
        self._failed.append(failed)
        num_failed = sum(self._failed)
        if (
            failed
            and len(self._failed) == self._limit.window
            and num_failed > self._limit.max_share * len(self._failed)
        ):
            raise RewardError(
                f"the scorer {self._name!r} failed for {num_failed} of its last {len(self._failed)} answers, more than "
                f"rollout.reward.max_failure_share = {self._limit.max_share:g} allows: what is left to learn from is "
                f"not a fair part of the prompts. The last failure: {outcome.reward.error}. Check the scorer and the "
                "ground truths (asyncrl check-data)."
            )
