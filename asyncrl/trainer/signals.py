"""The bound on dynamic sampling: how many groups without a difference in reward one step may cost."""

from asyncrl.config.dynamic_sampling import ZERO_VARIANCE
from buffer import ReplayBuffer


class Signals:
    """Counts the groups that were filtered since the last batch. Of rank 0."""

    def __init__(self, buffer: ReplayBuffer, max_batches: int, groups_per_step: int) -> None:
        """Take the bound, algorithm.max_gen_batches; 0: there is none, and nothing is counted."""
        self._buffer, self._max_batches, self._groups_per_step = buffer, max_batches, groups_per_step
        self._before = self._filtered()

    def leased(self) -> None:
        """A batch came: the next one is counted anew."""
        self._before = self._filtered()

    def missing(self) -> str:
        """Why the run should not go on generating; empty: it may."""
        most = self._max_batches * self._groups_per_step
        found = self._filtered() - self._before
        if not most or found < most:
            return ""
        return (
            f"{found} groups of equal rewards were generated for one step, and algorithm.max_gen_batches = "
            f"{self._max_batches} allows {most}: the prompts are too easy or too hard for this policy (the workers' "
            "zero_variance_at_<reward> in rollout/facts.json says which), or the reward says the same of every answer. "
            "Everything trained is in a checkpoint. Choose other prompts or another reward, raise rollout.n, or raise "
            "max_gen_batches."
        )

    def _filtered(self) -> int:
        return self._buffer.usage().reasons.get(ZERO_VARIANCE, 0) if self._max_batches else 0
