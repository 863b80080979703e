"""The training loop, on every rank and in every mode: lease -> batch -> step -> publish -> advance.

                 +--------------------------------------------------------------------+
                 v                                                                    |
  take over -> publish -> [evaluate] -> lease -> fetch -> step -> publish -> advance -+-> publish -> checkpoint
  (recover, claim)                        |                       (begin)             |   -> evaluate -> export
                                          | buffer full                checkpoint <---+
                                          +-----> checkpoint            every N steps, written beside the next ones

consumes  groups, from buffer             waits for     groups_per_step fresh groups
                                          unblocked by  rollout.worker, put
produces  weight versions, to weightsync  waits for     the copy of its weights, and the version before: publishing
                                                        runs beside the next step, and no server acknowledges
                                          unblocks      inference.host, by the flip of head; rollout.worker, by advance
          checkpoints                     unblocks      the buffer's memory, by commit
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from typing import Literal

import buffer.errors
import weightsync.errors
from asyncrl import waits
from asyncrl.errors import FencedOut
from asyncrl.metrics.phases import phase
from asyncrl.trainer import batch as batches
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.at_hand import WorkAtHand
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.export import export_policy
from asyncrl.trainer.held_out import HeldOut
from asyncrl.trainer.intake import Intake, NoGroups, StepGroups
from asyncrl.trainer.limits import Limits, Reached
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.loans import Loans
from asyncrl.trainer.measure import measure
from asyncrl.trainer.outcome import EndedBy, LedgerBehind, Outcome
from asyncrl.trainer.parts import TrainerParts
from asyncrl.trainer.publishing import Publishing
from asyncrl.trainer.randomness import seed_step
from asyncrl.trainer.reporting import Reporting
from asyncrl.trainer.saving import Saver
from asyncrl.trainer.takeover import take_over
from buffer.versions import label, unpack

__all__ = ["LedgerBehind", "Outcome", "TrainerParts", "TrainingLoop"]

log = logging.getLogger(__name__)


class TrainingLoop:
    """Runs one rank from its start to its end.

    Attributes:
        at_hand: what it computes and holds, for a stop in a hurry.
    """

    def __init__(self, parts: TrainerParts) -> None:
        """Take the parts; nothing happens before `run`."""
        self._parts = parts
        self._ranks = parts.collective
        self._config = parts.config
        self.at_hand = WorkAtHand()

    async def run(self, *, resume: bool, stop: threading.Event) -> Outcome:
        """Train until a limit of the run is reached or a stop is asked for, by `stop` or in the run record.

        Args:
            resume: go on from the newest checkpoint, if there is one.
            stop: set by a signal; the step that is running is finished first.
        Raises:
            FencedOut: a newer trainer owns the run; this one must not be started again.
            LedgerBehind: start again with `resume`.
            WaitTimeout: no groups in trainer.lease_wait_s seconds; everything trained is in a checkpoint.
            DataError: algorithm.max_gen_batches were filtered in one step; everything trained is in a checkpoint.
            CheckpointError, ExportError, NumericsError: see their docstrings.
        """
        try:
            lineage = await take_over(self._parts, resume=resume)
            run = _Run(self._parts, lineage, stop, self.at_hand)
            async with _heartbeat(run.reporting, self._ranks.rank == 0):
                try:
                    return await run.go()
                except Exception:
                    await run.publishing.leave()
                    await run.held_out.leave()
                    await run.saver.leave()
                    raise
        except (buffer.errors.Fenced, weightsync.errors.Fenced) as error:
            raise FencedOut(
                f"Another trainer has taken over this run: {error} This one leaves it alone. Do not start it again "
                "while the other one runs."
            ) from error
        except buffer.errors.Behind as error:
            raise LedgerBehind(f"{error} Start it again with --resume.") from error


class _Run:
    """One run on one branch: the helpers that share its lineage, and the loop over steps."""

    def __init__(self, parts: TrainerParts, lineage: Lineage, stop: threading.Event, at_hand: WorkAtHand) -> None:
        config = parts.config
        self.parts, self.config, self.ranks, self.lineage, self.stop = parts, config, parts.collective, lineage, stop
        self.publishing = Publishing(parts, lineage, stop)
        self.loans = Loans(parts)
        self.intake = Intake(parts, lineage, stop, lambda: self.publishing.is_under_way, self.loans.pays)
        self.saver = Saver(parts, lineage)
        self.limits = Limits(config.trainer, lineage, parts.collective)
        self.at_hand = at_hand
        at_hand.open(lineage.branch, self.saver)
        self.reporting = Reporting(parts, lineage)
        self.held_out = HeldOut(
            *(parts, lineage, self.publishing, self.loans, stop), write=self.reporting.write_of, scored=self.scored
        )
        self.steps_since_version = 0

    async def go(self) -> Outcome:
        """From the first version of the branch to the end."""
        await self.loans.begin()
        await self.publishing.publish()
        await self.publishing.advance()
        values: dict[str, float] = {}
        if self.lineage.step == 0 and self.parts.heldout:
            await self.publishing.ensure_head(max_lag=0)
            values = await self.held_out.now("before")
        self.write(values | self.publishing.drain())
        self.reporting.begin()
        while (reached := await self.limits.reached()) is None:
            await self.publishing.ensure_head(max_lag=self.config.plan.limit)
            groups = await self.intake.next(can_free_bytes=lambda: self.saver.frees_bytes)
            if isinstance(groups, StepGroups):
                self.at_hand.step_begins([entry.ordinal for entry in groups.entries])
                await self.train(groups)
                await self.saver.save_if_due()
            elif await self.without_groups(groups):
                await self.held_out.leave()
                await self.publishing.settle()
                await self.loans.lend()  # workers that stop too finish what they can
                return self.outcome("stopped", "stop")
        return await self.finish(reached)

    async def train(self, groups: StepGroups) -> None:
        """One step, and the version it makes if it is the last of one."""
        seed_step(self.config.run.seed, self.lineage.step)
        async with self.loans.for_training():
            await self.together()  # rank 0 took the devices of all ranks back
            with self.reporting.watches.watch("batch"):
                batch = self.build(groups)
            with self.reporting.watches.watch("update_actor"):
                tally = self.parts.learner.step(batch)
            await self.together()
        await self.loans.offer()
        measure(batch, tally)
        self.lineage.step += 1
        self.steps_since_version += 1
        self.saver.trained({entry.ordinal for entry in groups.entries})
        self.at_hand.step_ended()
        others = self.saver.drain() | self.loans.drain()
        if self.lineage.step % self.config.plan.steps_per_version == 0:
            due = self.held_out.is_due(self.lineage.number + 1) and self.lineage.step < self.config.trainer.steps
            await self.next_version(is_evaluated=due)
            if due:
                others |= await self.held_out.between(self.saver.to_be_scored)
        self.held_out.collect()
        others |= self.publishing.drain()
        num_tokens = [sum(entry.tokens) for entry in groups.entries]
        self.saver.kept_out(self.reporting.write_step(tally, groups, others, num_tokens=num_tokens))

    async def together(self) -> None:
        """Return when every rank is here."""
        if self.ranks.world > 1:
            await waits.blocking("rank waits for the others", self.ranks.barrier)

    @phase("batch")
    def build(self, groups: StepGroups) -> batches.Batch:
        """This rank's arrays."""
        algorithm = self.parts.algorithm
        return batches.build(
            groups.groups,
            groups.mini_batches,
            filter_zero_variance=algorithm.filter_zero_variance,
            filter_overlong=algorithm.filter_overlong,
            needs_baseline="baselines_B" in algorithm.columns,
            lag_of=self.lineage.lag_of,
            max_lag=self.config.plan.limit,
        )

    async def without_groups(self, answer: NoGroups) -> bool:
        """Do what has to be done instead of a step; returns whether the run stops."""
        if answer.reason == "lend":
            await self.loans.lend()
            return False
        if answer.reason == "answer_needs":
            await self.publishing.answer_needs()
            return False
        if answer.reason == "publish":
            if self.steps_since_version:
                await self.next_version()  # a short one: what the last number names is no longer at hand
            else:
                await self.publishing.publish()
            return False
        await self.saver.save()
        if answer.error is not None:
            raise answer.error
        return answer.reason == "stop"

    async def finish(self, reached: Reached) -> Outcome:
        """The last version, a checkpoint of it, its score, and its weights for others."""
        if self.steps_since_version:
            await self.next_version()  # a short one, so that servers get its steps, too
        await self.loans.lend()  # the last version is for servers that sleep, too
        await self.saver.save()
        await self.publishing.ensure_head(max_lag=0)
        await self.publishing.settle()  # head goes before the anchor, the pruning and the report
        await self.held_out.settle()
        after = await self.held_out.now("after")
        self.write(self.saver.drain() | self.publishing.drain() | after)
        if await self.stop_asked():
            return self.outcome("stopped", "stop")
        target, version = self.parts.run_dir / "export", label(self.lineage.version)
        await waits.blocking(
            "trainer exports", export_policy, self.parts.policy, self.config, target, version, self.ranks
        )
        return self.outcome("finished", reached)

    async def next_version(self, *, is_evaluated: bool = False) -> None:
        """Publish what was trained as the next version, and let the workers start the groups of the one after it."""
        self.lineage.number += 1
        self.steps_since_version = 0
        if is_evaluated:
            await self.held_out.announce()  # before it is head, so that no server is past it
        await self.publishing.begin()
        await self.publishing.advance()

    async def stop_asked(self) -> bool:
        """Rank 0's answer: the signal reaches the ranks at different moments."""

        async def look() -> Decision:
            return {"stop": self.stop.is_set()}

        return bool((await decided_by_rank0(self.ranks, look))["stop"])

    def scored(self, version: int, step: int, score: float | None) -> None:
        """The evaluation of a version, which that step made, came to a score; None: it was left out. On rank 0."""
        self.limits.scored(score)
        self.saver.scored(CheckpointName(*unpack(version), step), score)

    def write(self, values: dict[str, float]) -> None:
        """A line of its own for what is measured between steps."""
        if values:
            self.reporting.write(values)

    def outcome(self, reason: Literal["finished", "stopped"], ended_by: EndedBy) -> Outcome:
        """The end, with its numbers."""
        facts: dict[str, float | str] = {
            **self.held_out.facts,
            "steps": float(self.lineage.step),
            "versions": float(self.publishing.num_published),
            "publish_failures": float(self.publishing.num_failed),
            "checkpoints": float(self.saver.num_saved),
            "checkpoint_failures": float(self.saver.num_failed),
        }
        return Outcome(reason, ended_by, self.lineage.step, self.lineage.version, facts)


@contextlib.asynccontextmanager
async def _heartbeat(reporting: Reporting, is_rank0: bool) -> AsyncIterator[None]:
    if not is_rank0:
        yield
        return
    task = asyncio.create_task(reporting.beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
