"""The trainer's devices between two batches: lent to servers while it waits, if that pays, and taken back to train.

consumes  what servers on the devices say, through gpus   waits for     them to fall asleep
                                                          unblocked by  inference.host
produces  devices for servers                             unblocks      inference.host, which wakes them

Rank 0 measures and decides; every rank calls `begin`, `offer`, `lend` and `for_training` together. Answers in flight
when the devices are taken back keep their tokens: the workers go on with them elsewhere.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncrl import waits
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.lending import Average, LendingPolicy, Rate, Verdict
from asyncrl.trainer.parts import TrainerParts

LOOK_S = 1.0  # longest stay of the thread that waits for a server to serve, which a process waits for when it ends


class Loans:
    """Lends the devices of one trainer and takes them back."""

    def __init__(self, parts: TrainerParts, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpus, self._buffer, self._ranks = parts.gpus, parts.buffer, parts.collective
        self._lends = parts.config.plan.lends
        self._need = parts.config.schedule.groups_per_step
        self._clock = clock
        self.policy = LendingPolicy()
        self._is_lent = False
        self._verdict: Verdict | None = None
        """The last word on the wait that is going on; None: nobody waits, or it was not asked."""
        self._taken = 0
        self._stretch: tuple[Rate, float, int] | None = None
        """Which rate is being measured, since when, and how many groups had come in by then."""
        self._watching: asyncio.Task[None] | None = None
        self._lent_since_s: float | None = None
        self._waking_since_s: float | None = None
        """Since when a waking is measured; None: it is over, or was no switch."""
        self._evaluation = Average()
        self._news: dict[str, float] = {}

    async def begin(self) -> None:
        """Lend, whatever it costs: nothing is known yet, and a trainer that died may have left the servers asleep."""
        await self.lend(measures_waking=False)

    def pays(self, num_missing: int) -> bool:
        """Whether to lend now; rank 0 asks while it waits. Blocks, never while a loan begins or ends."""
        if not self._lends or self._is_lent:
            return False
        num, seconds = 0.0, 0.0
        if self._stretch is not None and self._stretch[0] is self.policy.alone:
            _, since_s, before = self._stretch
            num, seconds = self._taken + self._need - num_missing - before, self._clock() - since_s
        num_lent, num_others = self._gpus.num_servers()
        self._verdict = self.policy.judge(
            num_missing, num_lent=num_lent, num_others=num_others, num=num, seconds=seconds
        )
        return self._verdict.lends

    async def offer(self) -> None:
        """Lend if it pays: a batch was trained, and perhaps the next one is not there yet."""
        if not self._lends or self._is_lent:
            return

        async def look() -> Decision:
            num_ready = (await waits.in_thread(self._buffer.counts))["ready"]
            return {"lend": await waits.in_thread(self.pays, self._need - num_ready)}

        if (await decided_by_rank0(self._ranks, look))["lend"]:
            await self.lend()

    async def lend(self, *, measures_waking: bool = True) -> None:
        """Lend now. Devices that are lent stay so."""
        if not self._lends or self._is_lent:
            return
        self._is_lent = True
        await self._gpus.lend()
        if self._ranks.rank == 0:
            self._lent_since_s = self._clock()
            self._waking_since_s = self._lent_since_s if measures_waking else None
            self._watching = asyncio.create_task(self._watch())

    @asynccontextmanager
    async def for_training(self) -> AsyncIterator[None]:
        """Have the devices for the block, on rank 0 once no server uses them any more; they are kept after it.

        Raises:
            WaitTimeout: a server did not give its memory back in time.
        """
        if self._lends:
            self._taken += self._need  # the batch was leased, so it is not among those that are ready
            await self._recall()
        try:
            yield
        except BaseException:
            # The trainer ends; whoever still plays must not be left without servers.
            await self._gpus.lend()
            raise

    @asynccontextmanager
    async def for_evaluation(self) -> AsyncIterator[None]:
        """Lend for the block if an evaluation takes long enough. It says nothing about groups for training."""
        if self._lends and not self._is_lent:

            async def look() -> Decision:
                takes_s, (_, num_others) = self._evaluation.value, await waits.in_thread(self._gpus.num_servers)
                return {"lend": num_others == 0 or takes_s is None or takes_s >= self.policy.shortest_s}

            if (await decided_by_rank0(self._ranks, look))["lend"]:
                await self.lend()
        start_s = self._clock()
        try:
            yield
        finally:
            self._evaluation.note(self._clock() - start_s)
            self._stretch = None

    def drain(self) -> dict[str, float]:
        """Metrics of the loans since the last call, on rank 0; empty where nothing is ever lent."""
        news, self._news = self._news, {}
        return news

    async def _recall(self) -> None:
        if self._ranks.rank == 0 and self._is_lent:
            await self._stop_watching()
            await self._measure(None)
            since_s = self._clock()
            await self._gpus.recall()
            self.policy.sleep.note(self._clock() - since_s)
            self._count()
        self._is_lent = False
        if self._ranks.rank == 0:
            await self._report()
            if self._stretch is None:
                await self._measure(self.policy.alone)

    async def _watch(self) -> None:
        """Note when a server serves: it ends what a switch costs, and begins what lending brings."""
        while not await waits.in_thread(self._gpus.await_serving, LOOK_S):
            pass  # at most until the devices are taken back
        if self._waking_since_s is not None:
            self.policy.wake.note(self._clock() - self._waking_since_s)
            self._waking_since_s = None
        await self._measure(self.policy.together)

    async def _stop_watching(self) -> None:
        """Raises what ended the watch, if anything did."""
        watching, self._watching = self._watching, None
        if watching is None:
            return
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()
        elif self._waking_since_s is not None:
            self.policy.still_waking(self._clock() - self._waking_since_s)

    async def _measure(self, rate: Rate | None) -> None:
        """End the stretch that is being measured, and begin one of `rate`."""
        num = self._taken + (await waits.in_thread(self._buffer.counts))["ready"]
        now_s = self._clock()
        if self._stretch is not None:
            before, since_s, num_before = self._stretch
            before.note(num - num_before, now_s - since_s)
        self._stretch = None if rate is None else (rate, now_s, num)

    def _count(self) -> None:
        assert self._lent_since_s is not None
        lent_s, self._lent_since_s = self._clock() - self._lent_since_s, None
        self._news["perf/lend/switches"] = self._news.get("perf/lend/switches", 0.0) + 1.0
        self._news["perf/lend/lent_s"] = self._news.get("perf/lend/lent_s", 0.0) + lent_s

    async def _report(self) -> None:
        """What is known, as metrics, once a step; what nobody knows is left out."""
        policy, verdict = self.policy, self._verdict
        numbers = {
            "wake_s": policy.wake.value,
            "sleep_s": policy.sleep.value,
            "groups_per_s_alone": policy.alone.per_s(),
            "groups_per_s_together": policy.together.per_s(),
        }
        if verdict is not None:
            numbers |= {"wait_s": verdict.wait_s, "saved_s": verdict.saved_s, f"because/{verdict.reason}": 1.0}
            policy.waited(verdict)
        self._verdict = None
        known = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        self._news |= {f"perf/lend/{name}": value for name, value in known.items()}
