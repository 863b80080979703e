"""Versions of a running trainer: published beside the next step, failed and tried again, and the ledger told of each.

Where groups of an older version may be trained on, the loop waits for the copy of its weights only: the next step
trains while they are compared, sent and made head. One version at a time is on its way. Where the limit is 0 nobody
may start before head is the trained version, so there is nothing to do beside it, and no copy.
"""

import logging
import threading
import time

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from asyncrl.metrics.timing import Stopwatches
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.flight import Flight
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.parts import TrainerParts
from buffer.versions import label
from weightsync.errors import Fenced, PublishFailed, TransportError, WeightsyncError
from weightsync.publisher import PublishReport
from weightsync.staging import Staged

log = logging.getLogger(__name__)

AGAIN = "trainer publishes again"
NAME, COPY, LANDING = "trainer publishes", "trainer copies its weights", "trainer waits for the version before"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
LEAVE_S = 10.0
"""What a trainer that ends with an error gives to the version on its way; nothing rests on it, a resume finds out."""


class Publishing:
    """Publishes the policy of one lineage. Every rank calls it together."""

    def __init__(self, parts: TrainerParts, lineage: Lineage, stop: threading.Event) -> None:
        self._parts, self._lineage, self._stop = parts, lineage, stop
        self._beside = parts.config.weightsync.publish_beside and parts.config.plan.limit > 0
        self._flight: Flight[PublishReport] | None = None
        self._version = lineage.version
        self._news: dict[str, float] = {}
        self._watches = Stopwatches()
        self.num_failed = 0
        self.num_published = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a version is on its way; what became of one that is over is not known before `settle`."""
        return self._flight is not None and not self._flight.is_over

    async def begin(self) -> None:
        """Publish the version that is trained now, beside what comes next if the limit allows it."""
        if not self._beside:
            await self.publish()
            return
        await self.settle()
        with self._watches.watch("publish_blocked"):
            staged = await waits.blocking(COPY, self._parts.publisher.capture)
        self._depart(staged)

    async def publish(self) -> bool:
        """Publish the version that is trained now and wait for it; whether it is head.

        A failure is reported and counted, and head stays where it is.
        """
        await self.settle()
        self._depart(None)
        return await self.settle(NAME)

    async def settle(self, name: str = LANDING) -> bool:
        """Wait for the version on its way, if there is one, and note what became of it; whether one became head.

        Args:
            name: of the wait.
        Raises:
            Fenced: a newer trainer owns the log.
            WaitTimeout: it takes twice the time that it has: a call of the transport or the log does not come back.
        """
        if (flight := self._flight) is None:
            return False
        deadline_s = 2 * self._parts.config.weightsync.publish_deadline_s
        try:
            with self._watches.watch("publish_blocked"):
                report = await waits.until(
                    name, flight.landed, why=lambda: self._why(flight), wake=flight.wait, deadline_s=deadline_s
                )
        except PublishFailed as error:
            self.num_failed += 1
            log.warning("version %s is not published: %s", label(self._version), error)
            self._news["weightsync/failed"] = 1.0
            return False
        finally:
            if flight.is_over:
                self._flight = None
        self._lineage.remember(self._version, report.digest)
        self.num_published += 1
        self._news |= _metrics(report, flight.seconds if name == LANDING else 0.0)
        return True

    def drain(self) -> dict[str, float]:
        """Metrics of what was published, or failed, since the last call, and the seconds the loop waited for it."""
        news = self._news | {"timing_s/publish_blocked": 0.0} | self._watches.drain()
        self._news = {}
        return news

    async def leave(self) -> None:
        """Give the version on its way a moment to arrive, when the loop ends with an error; that error is the news."""
        if self._flight is None:
            return
        if not await waits.blocking(LANDING, self._flight.wait, LEAVE_S):
            log.warning("version %s is left on its way: %s", label(self._version), self._why(self._flight))
        elif self._flight.failure is not None:
            log.warning("version %s did not arrive either: %s", label(self._version), self._flight.failure)

    async def answer_needs(self) -> None:
        """Give servers that have no path to head an anchor; a failure is reported, and they go on asking."""
        await self.settle()
        try:
            await waits.blocking(NAME, self._parts.publisher.answer_needs)
        except Fenced:
            raise
        except WeightsyncError as error:
            log.warning("no anchor for the servers that ask for one: %s", error)

    async def advance(self) -> None:
        """Tell the ledger the trained version, published or not: workers may start the groups of the next."""
        config, lineage = self._parts.config, self._lineage

        async def tell() -> Decision:
            await waits.blocking(
                "trainer updates the ledger",
                lambda: self._parts.buffer.advance(
                    lineage.branch,
                    lineage.number,
                    limit=config.plan.limit,
                    groups_per_version=config.groups_per_version,
                ),
            )
            return {}

        await decided_by_rank0(self._parts.collective, tell)

    async def ensure_head(self, *, max_lag: int) -> None:
        """Publish until head is at most `max_lag` versions behind what is trained, or a stop is asked for.

        Before a lease head must be within the limit, else no worker may start a group and the trainer waits for ever.
        A version on its way that has arrived, or failed, is noted on the way: no failure waits for the next version.

        Raises:
            WaitTimeout: it could not be published in trainer.lease_wait_s seconds.
        """
        start_s, pauses_s = time.monotonic(), waits.doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        deadline_s = self._parts.config.trainer.lease_wait_s
        while True:
            state = await self._state_of_head(max_lag, time.monotonic() - start_s >= deadline_s)
            if state == "fresh" or state == "stop":
                return
            if state == "arrived" or self._flight is not None:
                await self.settle()
                continue
            if state == "late":
                raise WaitTimeout(
                    NAME,
                    time.monotonic() - start_s,
                    deadline_s,
                    f"head is more than {max_lag} versions behind {label(self._lineage.version)}, so no worker may "
                    "start a group; look at the transport of weight sync.",
                )
            if not await self.publish():
                await waits.pause(AGAIN, next(pauses_s))

    async def _state_of_head(self, max_lag: int, over: bool) -> str:
        """arrived (the version on its way), fresh, stale, late (stale, and the time is up) or stop; rank 0's answer."""

        async def look() -> Decision:
            if self._flight is not None and self._flight.is_over:
                return {"state": "arrived"}
            head = await waits.blocking(NAME, self._parts.publisher.head)
            if head is not None and self._lineage.lag_of(head) <= max_lag:
                return {"state": "fresh"}
            return {"state": "stop" if self._stop.is_set() else "late" if over else "stale"}

        decision = await decided_by_rank0(self._parts.collective, look)
        return str(decision["state"])

    def _depart(self, staged: Staged | None) -> None:
        version = self._version = self._lineage.version
        self._flight = Flight("publish", lambda: self._publish_and_prune(version, staged))

    def _publish_and_prune(self, version: int, staged: Staged | None) -> PublishReport:
        publisher = self._parts.publisher
        report = publisher.publish(version) if staged is None else publisher.publish(version, staged)
        try:
            publisher.prune()
        except TransportError as error:
            log.warning("old parts were not deleted: %s; the next version tries again", error)
        return report

    def _why(self, flight: Flight[PublishReport]) -> str:
        config, doing = self._parts.config.weightsync, self._parts.publisher.doing
        return (
            f"version {label(self._version)} is on its way for {flight.seconds:.0f} s, at {doing or 'the pruning'}; "
            f"weightsync.publish_deadline_s is {config.publish_deadline_s:g}"
        )


def _metrics(report: PublishReport, beside_s: float) -> dict[str, float]:
    return {
        "weightsync/failed": 0.0,
        "weightsync/version": float(report.version),
        "weightsync/num_bytes": float(report.num_bytes),
        "weightsync/num_changed": float(report.num_changed),
        "weightsync/num_words": float(report.num_words),
        "weightsync/whole": float(report.kind == "anchor"),
        "weightsync/anchor": float(report.has_anchor),
        "weightsync/num_merged_bytes": float(report.num_merged_bytes),
        "timing_s/publish_beside": beside_s,
        **{f"timing_s/publish/{phase}": seconds for phase, seconds in report.seconds.items()},
    }
