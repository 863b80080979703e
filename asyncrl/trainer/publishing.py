"""Versions of a running trainer: published, failed and tried again, and the ledger told about each of them."""

import logging
import threading
import time

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.parts import TrainerParts
from buffer.versions import label
from weightsync.errors import Fenced, PublishFailed, TransportError, WeightsyncError

log = logging.getLogger(__name__)

NAME = "trainer publishes"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


class Publishing:
    """Publishes the policy of one lineage. Every rank calls it together."""

    def __init__(self, parts: TrainerParts, lineage: Lineage, stop: threading.Event) -> None:
        self._parts, self._lineage, self._stop = parts, lineage, stop
        self.num_failed = 0
        self.num_published = 0

    async def publish(self) -> dict[str, float]:
        """Publish the version that is trained now; a failure is reported and counted, and head stays where it is.

        Returns:
            Metrics under weightsync/.
        """
        version = self._lineage.version
        try:
            report = await waits.blocking(NAME, self._parts.publisher.publish, version)
        except PublishFailed as error:
            self.num_failed += 1
            log.warning("version %s is not published: %s", label(version), error)
            return {"weightsync/failed": 1.0}
        self._lineage.remember(version, report.digest)
        self.num_published += 1
        await self._prune()
        return {
            "weightsync/failed": 0.0,
            "weightsync/version": float(version),
            "weightsync/num_bytes": float(report.num_bytes),
            "weightsync/num_changed": float(report.num_changed),
            "weightsync/num_words": float(report.num_words),
            "weightsync/whole": float(report.kind == "anchor"),
            "weightsync/anchor": float(report.has_anchor),
            **{f"timing_s/publish/{phase}": seconds for phase, seconds in report.seconds.items()},
        }

    async def answer_needs(self) -> None:
        """Give servers that have no path to head an anchor; a failure is reported, and they go on asking."""
        try:
            await waits.blocking(NAME, self._parts.publisher.answer_needs)
        except Fenced:
            raise
        except WeightsyncError as error:
            log.warning("no anchor for the servers that ask for one: %s", error)

    async def _prune(self) -> None:
        if self._parts.collective.rank != 0:
            return
        try:
            await waits.blocking(NAME, self._parts.publisher.prune)
        except TransportError as error:
            log.warning("old parts were not deleted: %s; the next version tries again", error)

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
        Raises:
            WaitTimeout: it could not be published in trainer.lease_wait_s seconds.
        """
        start_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        deadline_s = self._parts.config.trainer.lease_wait_s
        while True:
            state = await self._state_of_head(max_lag, time.monotonic() - start_s >= deadline_s)
            if state == "fresh" or state == "stop":
                return
            if state == "late":
                raise WaitTimeout(
                    NAME,
                    time.monotonic() - start_s,
                    deadline_s,
                    f"head is more than {max_lag} versions behind {label(self._lineage.version)}, so no worker may "
                    "start a group; look at the transport of weight sync.",
                )
            if "weightsync/version" not in await self.publish():
                await waits.pause("trainer publishes again", pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _state_of_head(self, max_lag: int, over: bool) -> str:
        """fresh, stale, late (stale, and the time is up) or stop; rank 0's answer."""

        async def look() -> Decision:
            head = await waits.blocking(NAME, self._parts.publisher.head)
            if head is not None and self._lineage.lag_of(head) <= max_lag:
                return {"state": "fresh"}
            return {"state": "stop" if self._stop.is_set() else "late" if over else "stale"}

        decision = await decided_by_rank0(self._parts.collective, look)
        return str(decision["state"])
