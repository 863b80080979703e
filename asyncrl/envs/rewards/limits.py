"""Requests and tokens per minute, as the people who run an endpoint count them: over any 60 seconds."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.waits import pause, timed

MINUTE_S = 60.0
WAIT = "episode waits for a reward endpoint's limit per minute"


@dataclass
class Share:
    """The part of every limit that this worker has: one of so many equal ones. It may change at any time."""

    num_workers: int = 1

    def of(self, limit: int | None) -> float | None:
        """This worker's part of a limit; None: there is no limit."""
        return None if limit is None else limit / self.num_workers


@dataclass
class _Spent:
    until_s: float
    tokens: int


class MinuteLimits:
    """Admits requests one after the other, first come first served; bound to the event loop that it is used in.

    What was spent in the last minute is kept, at most one entry a request. A request that is more than this worker's
    part passes when nothing else is kept, and is then kept for as many minutes as it is parts.

    Args:
        name: of the endpoint, for the reason of the wait.
        requests: most in any minute, of all workers; None: no limit.
        tokens: most in any minute, of all workers; None: no limit.
        clock: seconds, monotonic.
        share: this worker's part; looked at before each request.
    """

    def __init__(
        self,
        name: str,
        requests: int | None,
        tokens: int | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        share: Share | None = None,
    ) -> None:
        self._name, self._requests, self._tokens, self._clock = name, requests, tokens, clock
        self._share = share or Share()
        self._spent: deque[_Spent] = deque()
        self._total_tokens = 0
        self._turn = asyncio.Lock()

    async def admit(self, tokens: int) -> "Admitted":
        """Wait until a request of about so many tokens is within the limits, and count it."""
        if self._requests is None and self._tokens is None:
            return Admitted(self, None)
        if self._turn.locked() or self.wait_s(tokens) > 0:
            with timed(WAIT, self._why):
                await self._turn.acquire()
            try:
                while (left_s := self.wait_s(tokens)) > 0:
                    await pause(WAIT, left_s, self._why)
                return self._count(tokens)
            finally:
                self._turn.release()
        return self._count(tokens)

    def wait_s(self, tokens: int) -> float:
        """Seconds until a request of so many tokens would be within the limits."""
        now = self._clock()
        while self._spent and self._spent[0].until_s <= now:
            self._total_tokens -= self._spent.popleft().tokens
        requests, most_tokens = self._share.of(self._requests), self._share.of(self._tokens)
        too_many = 0 if requests is None else len(self._spent) + 1 - max(1, int(requests))
        excess = 0.0 if most_tokens is None else self._total_tokens + tokens - most_tokens
        wait_s = 0.0
        for number, one in enumerate(self._spent):
            if number >= too_many and excess <= 0:
                break
            excess -= one.tokens
            wait_s = one.until_s - now
        return wait_s

    def correct(self, spent: _Spent, tokens: int) -> None:
        """What a request really took."""
        if any(one is spent for one in self._spent):
            self._total_tokens += tokens - spent.tokens
            spent.tokens = tokens

    def _count(self, tokens: int) -> "Admitted":
        requests, most_tokens = self._share.of(self._requests), self._share.of(self._tokens)
        num_minutes = max(1.0, 1 / (requests or 1), tokens / (most_tokens or max(1, tokens)))
        until_s = self._clock() + MINUTE_S * num_minutes
        # Never before an earlier one: entries leave in their order.
        one = _Spent(max(until_s, self._spent[-1].until_s) if self._spent else until_s, tokens)
        self._spent.append(one)
        self._total_tokens += tokens
        return Admitted(self, one)

    def _why(self) -> str:
        return (
            f"{self._name}: {len(self._spent)} requests and {self._total_tokens} tokens in the last minute, allowed "
            f"{self._requests or 'any'} and {self._tokens or 'any'} for {self._share.num_workers} workers together"
        )


@dataclass(frozen=True)
class Admitted:
    """A request that was admitted by its estimate."""

    limits: MinuteLimits
    spent: _Spent | None

    def took(self, tokens: int | None) -> None:
        """The endpoint said how many tokens it was; None: it did not."""
        if self.spent is not None and tokens is not None:
            self.limits.correct(self.spent, tokens)
