"""Checkpoints of a running trainer: ledger, files, one rename, then the buffer lets go of what was trained."""

import logging
from collections import Counter
from collections.abc import Mapping

from asyncrl import waits
from asyncrl.errors import CheckpointError
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.lineage import Lineage, digests_to_json
from asyncrl.trainer.parts import TrainerParts
from buffer.lineage import Ledger
from buffer.status import Usage

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Checkpoints in a row that may fail before the run stops: it must not lose ever more work, and the buffer fills."""


class Saver:
    """Saves the run, and counts what a save failed. Every rank calls it together."""

    def __init__(self, parts: TrainerParts, lineage: Lineage) -> None:
        self._parts, self._lineage = parts, lineage
        self._trained: set[int] = set()
        self._masked: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        self._saved_step = lineage.step
        self._failures = 0
        self.num_saved = self.num_failed = 0

    @property
    def has_news(self) -> bool:
        """Whether a checkpoint now would hold more than the newest one."""
        return self._lineage.step > self._saved_step

    @property
    def is_due(self) -> bool:
        """Whether it is time, or the last one failed."""
        every = self._parts.config.trainer.checkpoint.every_steps
        return self.has_news and (self._lineage.step % every == 0 or self._failures > 0)

    def trained(self, ordinals: set[int]) -> None:
        """Note what the next checkpoint closes."""
        self._trained |= ordinals

    def kept_out(self, tokens: Mapping[str, int]) -> None:
        """Note sampled tokens of what was trained that did not enter the loss, by data source; on rank 0."""
        self._masked.update(tokens)

    def drain_gauges(self) -> dict[str, float]:
        """Metrics of the buffer as the newest checkpoint found it, once; on rank 0."""
        drained, self._gauges = self._gauges, {}
        return drained

    async def save_if_due(self) -> None:
        """A periodic checkpoint: a failure is reported and tried again after the next step.

        Raises:
            CheckpointError: the third failure in a row.
        """
        if not self.is_due:
            return
        try:
            await self.save()
        except CheckpointError as error:
            if self._failures >= MAX_FAILURES:
                raise
            log.warning("%s Training goes on; failure %d of %d.", error, self._failures, MAX_FAILURES)

    async def save(self) -> None:
        """A checkpoint now, then the commit; nothing if the newest one holds this step already.

        Raises:
            CheckpointError: it could not be written; older checkpoints are as they were.
        """
        if not self.has_news:
            return
        parts, lineage = self._parts, self._lineage
        name = CheckpointName(lineage.branch, lineage.number, lineage.step)
        ledger: Ledger | None = None

        async def take() -> Decision:
            nonlocal ledger
            ledger = await waits.blocking(
                "trainer updates the ledger",
                lambda: parts.buffer.ledger(lineage.branch, lineage.number, self._trained, self._masked),
            )
            self._gauges = gauges(await waits.in_thread(parts.buffer.usage))
            return {}

        await decided_by_rank0(parts.collective, take)
        state = {} if ledger is None else self._state(ledger)
        try:
            await waits.blocking(
                "trainer writes a checkpoint",
                lambda: parts.checkpoints.save(
                    name, parts.policy, state, parts.collective, critic=parts.learner.critic
                ),
            )
        except CheckpointError:
            self._failures += 1
            self.num_failed += 1
            raise
        self._failures = 0
        self.num_saved += 1
        self._saved_step = lineage.step

        async def commit() -> Decision:
            assert ledger is not None
            await waits.blocking("trainer updates the ledger", parts.buffer.commit, lineage.branch, ledger)
            return {}

        await decided_by_rank0(parts.collective, commit)
        # Not before the commit: until then the next ledger has to name them again.
        self._trained.clear()
        self._masked.clear()

    def _state(self, ledger: Ledger) -> dict[str, object]:
        lineage = self._lineage
        return {
            "branch": lineage.branch,
            "number": lineage.number,
            "step": lineage.step,
            "optimizer_steps": self._parts.policy.optimizer_steps,
            **self._parts.learner.state(),
            "world": self._parts.collective.world,
            "ledger": ledger.to_json(),
            "forks": {str(branch): list(fork) for branch, fork in lineage.forks.items()},
            "digests": digests_to_json(lineage.digests),
            "config": self._parts.config.model_dump(mode="json"),
        }


def gauges(usage: Usage) -> dict[str, float]:
    """Metrics of the whole buffer, as a checkpoint finds it.

    They depend on who was when, as seconds do: hence perf/.
    """
    denied = "denied_"
    return {
        "perf/buffer/resident_bytes": float(usage.resident_bytes),
        "perf/buffer/promised_bytes": float(usage.promised_bytes),
        "perf/buffer/dead_bytes": float(usage.dead_bytes),
        **{
            f"perf/buffer/denied/{reason.removeprefix(denied)}": float(times)
            for reason, times in usage.reasons.items()
            if reason.startswith(denied)
        },
        **{f"perf/buffer/wasted_frac/{fate}": share for fate, share in usage.wasted_by_reason.items()},
    }
