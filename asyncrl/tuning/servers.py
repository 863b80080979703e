"""Servers in a simulation: requests share a server evenly, and a version reaches it by staging and a pause."""

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

from asyncrl.tuning.profile import Speeds


class TokenTimes:
    """Seconds from one token of a request to the next, by how many requests its server has."""

    def __init__(self, token_s: Mapping[float, float]) -> None:
        self._at_once = sorted(token_s)
        self._seconds = [token_s[at] for at in self._at_once]
        first_s, first = self._seconds[0], self._at_once[0]
        # Not below zero seconds for no request, and never faster the more there are.
        self._slope = min(max(_slope(self._at_once, self._seconds), 0.0), first_s / first)

    def at(self, at_once: int) -> float:
        """See `Speeds.token_s`."""
        if at_once <= self._at_once[0]:
            return self._seconds[0] - self._slope * (self._at_once[0] - at_once)
        if at_once >= self._at_once[-1]:
            return self._seconds[-1] * at_once / self._at_once[-1]
        above = bisect_left(self._at_once, at_once)
        left, right = self._at_once[above - 1], self._at_once[above]
        share = (at_once - left) / (right - left)
        return self._seconds[above - 1] * (1 - share) + self._seconds[above] * share


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the straight line with the least squares; one point has a level one."""
    middle_x, middle_y = fmean(xs), fmean(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0


@dataclass
class Server:
    """One server. Every request in it gets tokens at the same pace, so that one clock of tokens serves them all.

    Attributes:
        version: that it samples with.
        is_still: stands still for a version.
        is_away: takes no request: it stands still, or nobody knows yet that it goes on.
        token: of the event that tells the end of its next request; a later change makes it void.
        busy_s: seconds in which it had requests and did not stand still.
    """

    times: TokenTimes
    version: int = 0
    is_still: bool = False
    is_away: bool = False
    token: int = 0
    busy_s: float = 0.0
    _clock: float = 0.0
    _at_s: float = 0.0
    _ends: list[tuple[float, int, object]] = field(default_factory=list)
    _order: "count[int]" = field(default_factory=count)

    @property
    def at_once(self) -> int:
        """Requests that it has."""
        return len(self._ends)

    def take(self, now_s: float, tokens: float, request: object) -> None:
        """Begin a request of so many tokens."""
        self._move_to(now_s)
        heapq.heappush(self._ends, (self._clock + tokens, next(self._order), request))

    def stand_still(self, now_s: float) -> None:
        """Begin an update."""
        self._move_to(now_s)
        self.is_still = self.is_away = True

    def go_on(self, now_s: float, version: int) -> None:
        """End the standstill of an update."""
        self._move_to(now_s)
        self.is_still, self.version = False, version

    def next_end_s(self, now_s: float) -> float | None:
        """When its next request ends if nothing else happens; None: it has none, or stands still."""
        self._move_to(now_s)
        if self.is_still or not self._ends:
            return None
        return now_s + max(0.0, self._ends[0][0] - self._clock) * self.times.at(self.at_once)

    def end_of_next(self, now_s: float) -> object:
        """End its next request and return it."""
        self._move_to(now_s)
        end, _, request = heapq.heappop(self._ends)
        self._clock = max(self._clock, end)  # no request is left behind its end by rounding
        return request

    def _move_to(self, now_s: float) -> None:
        if self._ends and not self.is_still:
            self._clock += (now_s - self._at_s) / self.times.at(self.at_once)
            self.busy_s += now_s - self._at_s
        self._at_s = now_s


def fleet(speeds: Speeds, size: int) -> list[Server]:
    """Servers that begin with the first version."""
    times = TokenTimes(speeds.token_s)
    return [Server(times) for _ in range(size)]
