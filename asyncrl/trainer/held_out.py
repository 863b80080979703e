"""When versions are evaluated, and what becomes of their scores: before the first step, after the last, and between.

Between steps it goes on beside training where a server can be kept at the version (eval.pin): the pin is put before the
version is head, so that the server cannot be past it, and workers play held-out prompts on that server alone. The
metrics come when they come, under the step that made the version. Where no server can be spared, training waits.

consumes  who serves, from weightsync's log       waits for     the evaluation, where training cannot go on beside it
                                                  unblocked by  trainer.evaluation
produces  val-core/ metrics; scores, for saver    unblocks      inference.host, by the pin and by taking it back
          and limits
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from asyncrl import waits
from asyncrl.metrics.held_out import held_out_score
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.evaluation import NAME, Evaluation
from asyncrl.trainer.flight import Flight
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.loans import Loans
from asyncrl.trainer.parts import TrainerParts
from asyncrl.trainer.publishing import Publishing
from buffer.versions import label
from weightsync.acks import Server
from weightsync.errors import LogLost
from weightsync.log.base import Pin

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # the log is asked no more often, however fast answers come in
GONE_S = 60.0
"""Seconds that the kept server may be away: a new life of it comes back to the version."""
LET_GO_PAUSES_S = (1.0, 10.0, 60.0, 300.0)
LEAVE_S = 10.0
"""What a run that stops gives to an evaluation to close its ledger and let its server go."""

Scored = Callable[[int, int, float | None], None]
"""Told the packed version, the step that made it, and its score, or None if it was left out; on rank 0."""
Write = Callable[[int, Mapping[str, float]], None]
"""Writes metrics of a step; on rank 0."""


@dataclass(frozen=True)
class Beside:
    """An evaluation that goes on beside training: of which version, made by which step, and where it is played."""

    version: int
    step: int
    flight: Flight[dict[str, float]]


class HeldOut:
    """Evaluates the versions of one lineage. Every rank calls it together; rank 0 has the numbers."""

    def __init__(
        self,
        parts: TrainerParts,
        lineage: Lineage,
        publishing: Publishing,
        loans: Loans,
        stop: threading.Event,
        *,
        write: Write,
        scored: Scored,
    ) -> None:
        """Nothing is evaluated yet."""
        config = parts.config
        self._write, self._scored = write, scored
        self._parts, self._lineage, self._publishing, self._loans = parts, lineage, publishing, loans
        self._config = config.eval
        self._leaving = threading.Event()
        self._evaluation = Evaluation(
            parts.buffer,
            num_prompts=parts.heldout,
            group_size=config.eval.n,
            pass_reward=config.eval.pass_reward,
            deadline_s=config.eval.deadline_s,
            samples_dir=parts.run_dir / "samples",
            num_samples=config.trainer.samples_per_eval,
            stopping=lambda: stop.is_set() or self._leaving.is_set(),
        )
        self._announced: Decision = {"do": "wait"}
        self._beside: Beside | None = None
        self.facts: dict[str, float] = {}
        """heldout_before and heldout_after, for the summary."""

    def is_due(self, number: int) -> bool:
        """Whether a version of this number is evaluated while the run goes on."""
        every = self._config.every_versions
        return bool(every) and self._parts.heldout > 0 and number % every == 0

    async def announce(self) -> None:
        """The version that is trained now is going to be evaluated, and is about to be published: decide how.

        Raises:
            Fenced: a newer trainer owns the log.
        """
        self._announced = await decided_by_rank0(self._parts.collective, self._choose)

    async def between(self, to_be_scored: Callable[[], None]) -> dict[str, float]:
        """Evaluate the announced version, which is published, or on its way: beside training, or now.

        Args:
            to_be_scored: called on every rank if it is evaluated at all.
        Returns:
            Metrics, if it was done now; on rank 0.
        """
        if self._announced["do"] == "skip":
            return {}
        to_be_scored()
        if self._announced["do"] == "wait":
            await self._publishing.settle()
            return await self.now(f"version-{label(self._lineage.version)}")
        if self._parts.collective.rank == 0:
            self._begin(self._announced["server"])
        return {}

    async def now(self, name: str) -> dict[str, float]:
        """Evaluate the trained version while nothing is published; metrics, on rank 0."""
        if self._parts.heldout == 0:
            return {}
        version, step = self._lineage.version, self._lineage.step
        async with self._loans.for_evaluation():
            if self._parts.collective.rank != 0:
                return {}
            values = await self._evaluation.run(version, name)
        score = held_out_score(values)
        self._scored(version, step, score)
        if score is not None and name in ("before", "after"):
            self.facts[f"heldout_{name}"] = score
        return values

    def collect(self) -> None:
        """Take the metrics of the evaluation beside training, if it is over. Raises what ended it."""
        beside = self._beside
        if beside is None or not beside.flight.is_over:
            return
        self._beside = None
        values = beside.flight.landed() or {}
        if values:
            self._write(beside.step, values)
        self._scored(beside.version, beside.step, held_out_score(values))

    async def settle(self) -> None:
        """Wait for the evaluation beside training, which has a deadline, and take its metrics.

        Raises:
            WaitTimeout: it does not end by itself: a call of the buffer or the log does not come back.
        """
        if (beside := self._beside) is None:
            return
        await waits.until(
            NAME,
            lambda: beside.flight.is_over or None,
            why=lambda: f"version {label(beside.version)} is evaluated for {beside.flight.seconds:.0f} s",
            wake=beside.flight.wait,
            deadline_s=2 * self._config.deadline_s + sum(LET_GO_PAUSES_S),
        )
        self.collect()

    async def leave(self) -> None:
        """The run stops: end the evaluation beside it, so that its server goes on to head and workers stop playing."""
        self._leaving.set()
        if self._beside is not None and not await waits.blocking(NAME, self._beside.flight.wait, LEAVE_S):
            log.warning("the evaluation of version %s is left as it is", label(self._beside.version))

    async def _choose(self) -> Decision:
        """Rank 0's: `skip`, `wait`, or `beside` with a server, which is asked to stay."""
        self.collect()
        if self._beside is not None:
            log.warning(
                "version %s is not evaluated: the evaluation of version %s still goes on after %.0f s. Raise "
                "eval.every_versions, or lower eval.n or eval.max_prompts",
                label(self._lineage.version),
                label(self._beside.version),
                self._beside.flight.seconds,
            )
            return {"do": "skip"}
        servers = await waits.in_thread(self._parts.log.servers) if self._config.pin else {}
        server = to_keep(servers)
        if server is None:
            return {"do": "wait"}
        pin = Pin(server, self._lineage.version)
        await waits.in_thread(self._parts.log.put_pin, self._lineage.branch, pin)
        return {"do": "beside", "server": server}

    def _begin(self, server: str) -> None:
        version, branch = self._lineage.version, self._lineage.branch
        whereabouts = Whereabouts(self._parts, self._lineage, Pin(server, version))

        async def play() -> dict[str, float]:
            name = f"version-{label(version)}"
            try:
                return await self._evaluation.run(version, name, server=server, why_never=whereabouts.why_never)
            finally:
                await self._let_go(branch, server)

        self._beside = Beside(version, self._lineage.step, Flight("evaluation", lambda: asyncio.run(play())))

    async def _let_go(self, branch: int, server: str) -> None:
        """Take the pin back. A log that does not answer costs no run: it is asked again, and the next pin replaces it.

        Raises:
            Fenced: a newer trainer owns the log, to whom the pin is void.
        """
        for pause_s in LET_GO_PAUSES_S:
            try:
                await waits.in_thread(self._parts.log.put_pin, branch, None)
                return
            except LogLost as error:
                log.warning("%s still stays at the evaluated version: %s", server, error)
            await waits.pause("evaluation lets its server go again", pause_s)


class Whereabouts:
    """Whether the server that is kept at a version can still play its evaluation."""

    def __init__(
        self, parts: TrainerParts, lineage: Lineage, pin: Pin, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._lineage, self._pin, self._clock = parts.log, lineage, pin, clock
        self._seen_s = self._looked_s = clock()

    def why_never(self) -> str:
        """Why it never will, empty while it may, and between two looks; blocks."""
        if self._clock() - self._looked_s < LOOK_EVERY_S:
            return ""
        self._looked_s = self._clock()
        try:
            return self._look(self._pin.server, self._pin.version)
        except LogLost as error:
            log.warning("nobody knows for a moment where %s is: %s", self._pin.server, error)
            return ""

    def _look(self, name: str, version: int) -> str:
        if self._lineage.version > version and self._log.digest_of(version) is None:
            return f"version {label(version)} was not published, and training is at a later one"
        if name in self._log.servers():
            self._seen_s = self._clock()
        elif self._clock() - self._seen_s > GONE_S:
            return f"{name} is gone for {GONE_S:.0f} s"
        ack = self._log.acks().get(name)
        if ack is not None and ack.state == "serving" and ack.version > version:
            return f"{name} is at version {label(ack.version)}: what leads to the older one is gone"
        return ""


def to_keep(servers: Mapping[str, Server]) -> str | None:
    """The server that stays at a version, the last by name; None unless another one goes on to head for training.

    Servers on devices of the trainer's sleep while it trains, so they are neither.
    """
    able = sorted(n for n, server in servers.items() if server.state in ("serving", "updating") and not server.lent)
    return able[-1] if len(able) > 1 else None
