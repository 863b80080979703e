"""Limits per minute of reward endpoints are a run's: its workers, on whatever machines, have equal parts of them.

How many there are is told by their reports. A report that is late or lost makes parts too large or too small for a
while; nothing that is trained depends on it.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

from asyncrl import waits
from asyncrl.config import RolloutConfig
from asyncrl.envs.rewards.limits import Share
from buffer import ReplayBuffer

LOOK_EVERY_S = 20.0
"""Seconds between two looks: a worker that joins or ends changes the parts of others so late."""
ALIVE_MS = 15_000.0
"""Age of the last report up to which a worker counts; it reports every few seconds."""
PLAYS = "episodes_playing"
"""A fact that whoever plays episodes reports, and nobody else."""

Reports = Mapping[str, Mapping[str, float | str]]


def limit_sharing(
    rollout: RolloutConfig, buffer: ReplayBuffer, name: str, share: Share
) -> Callable[[], Awaitable[None]] | None:
    """What a worker does after its reports to keep `share` right; None where nothing is limited.

    Args:
        name: of the worker in its reports.
    """
    if not rollout.reward.has_minute_limits:
        return None
    return _Sharing(buffer, name, share, max(1, rollout.workers)).look


class _Sharing:
    """`at_least`: workers of this machine, of which some may not have reported yet."""

    def __init__(self, buffer: ReplayBuffer, name: str, share: Share, at_least: int) -> None:
        self._buffer, self._name, self._share, self._at_least = buffer, name, share, at_least
        self._looked_s = float("-inf")

    async def look(self) -> None:
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            reports = await waits.in_thread(self._buffer.reports)
            self._share.num_workers = max(self._at_least, num_alive(reports, self._name))


def num_alive(reports: Reports, name: str) -> int:
    """Workers that have reported lately, and `name`.

    Args:
        reports: facts by source; `at_ms` is when, by the buffer's clock, and so the newest report says what time it is.
    """
    at_ms = {source: float(facts["at_ms"]) for source, facts in reports.items() if PLAYS in facts}
    newest_ms = max(at_ms.values(), default=0.0)
    return len({name} | {source for source, at in at_ms.items() if newest_ms - at <= ALIVE_MS})
