"""Drain a run's buffer: close admission, and wait until no group is in flight.

consumes  nothing                        waits for     groups in flight to come in or to expire
produces  a run that nobody plays for    unblocked by  rollout.worker, put; sweep, for workers that died
"""

import time
from collections.abc import Callable

from asyncrl import waits
from buffer import ReplayBuffer

DRAIN = "drain waits for groups in flight"
SWEEP_EVERY_S = 5.0  # as the trainer does while it waits: somebody must end the claims of workers that died
SAY_EVERY_S = 10.0


class Drain:
    """One drain; `paused` tells whether admission was closed by it.

    Args:
        say: told a line when the count changes, and now and then while it does not.
    """

    def __init__(self, buffer: ReplayBuffer, say: Callable[[str], None]) -> None:
        self._buffer, self._say = buffer, say
        self._start_s = self._swept_s = time.monotonic()
        self._said: tuple[float, int] = (0.0, -1)
        self.paused = False

    async def run(self, deadline_s: float) -> dict[str, int]:
        """Pause, wait, and answer the counts by state.

        Raises:
            WaitTimeout: groups are still in flight at the deadline; the run stays paused.
            ServerLost: the buffer's server is gone.
        """
        hints = await waits.in_thread(self._buffer.hints)
        await waits.in_thread(self._buffer.pause)
        self.paused = True
        return await waits.until(DRAIN, self._attempt, why=self._why, wake=hints.wait, deadline_s=deadline_s)

    def _attempt(self) -> dict[str, int] | None:
        now_s = time.monotonic()
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            self._buffer.sweep()
        counts = self._buffer.counts()
        left = counts["in_flight"]
        said_s, said = self._said
        if left != said or now_s - said_s >= SAY_EVERY_S:
            self._said = now_s, left
            self._say(f"{now_s - self._start_s:.0f} s: {left} in flight, {counts['ready']} ready")
        return counts if left == 0 else None

    def _why(self) -> str:
        """Who is waited for; the run stays paused meanwhile."""
        claims = self._buffer.status().claims
        oldest = "; ".join(f"ordinal {c.ordinal} for {c.age_s:.0f} s by {c.worker}" for c in claims[:5])
        return f"{len(claims)} groups are in flight, the oldest: {oldest or 'none any more'}."
