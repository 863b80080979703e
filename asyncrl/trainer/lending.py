"""Whether it pays to lend the trainer's devices while it waits for groups, by what switching and waiting have taken.

Pure: no clock, no log, no device; `loans` measures and asks.

A switch costs the seconds in which the servers wake and catch up with head, when the devices make nothing, and those in
which they fall asleep, when the trainer stands there with a batch. With `a` groups a second from the other servers
alone, and `b` with the lent ones too, `n` missing groups come in after

    n / a                                      seconds if the devices stay,
    wake + max(0, n - a * wake) / b + sleep    seconds if they are lent, for n > a * wake; else n / a + sleep.

Where all servers are lent ones the trainer would wait for ever if it kept them.
"""

import math
from dataclasses import dataclass

LEND_FROM, LEND_AGAIN = 3.0, 2.0
"""A wait has to be so many switches long to be lent; fewer where the last wait was, so that a wait near the bound does
not change sides at each step."""
WEIGHT = 0.3  # of the newest measurement in an average
RATE_FORGETS = 0.1  # of what was counted before, at each stretch: groups come in bursts, a few in each
FORGET = 0.95  # what is left of a switch's cost after a wait without one: a single slow switch is tried again in time
PROBE_AFTER = 20  # waits in a row after which a gain that was not there is measured again


class Average:
    """Exponential average of what was measured; None before the first time."""

    def __init__(self) -> None:
        self.value: float | None = None

    def note(self, value: float) -> None:
        """Take one measurement, >= 0."""
        self.value = value if self.value is None else (1 - WEIGHT) * self.value + WEIGHT * value

    def forget(self) -> None:
        """It counts a little less."""
        if self.value is not None:
            self.value *= FORGET


class Rate:
    """Groups a second over the latest stretches of time, the older ones less; None before the first."""

    def __init__(self) -> None:
        self._num = self._seconds = 0.0

    def note(self, num: float, seconds: float) -> None:
        """`num` groups came in during a stretch of `seconds`."""
        if seconds > 0:
            self._num = (1 - RATE_FORGETS) * self._num + max(num, 0.0)
            self._seconds = (1 - RATE_FORGETS) * self._seconds + seconds

    def per_s(self, num: float = 0.0, seconds: float = 0.0) -> float | None:
        """The rate, the stretch that is not over yet included."""
        total_s = self._seconds + seconds
        return (self._num + max(num, 0.0)) / total_s if total_s > 0 else None


@dataclass(frozen=True)
class Verdict:
    """Whether to lend now, and why.

    Attributes:
        reason: ready (nothing is missing), no_server (nobody to lend to), unmeasured (to find out), short_wait,
            no_gain, gain, or nobody_else (the trainer would wait for ever).
        wait_s: seconds that the missing groups take without the devices, infinite if nobody else makes any; None:
            nobody knows.
        saved_s: seconds that lending saves of them; None: nobody knows.
    """

    lends: bool
    reason: str
    wait_s: float | None = None
    saved_s: float | None = None


class LendingPolicy:
    """Weighs a switch against a wait.

    Attributes:
        alone, together: rates of groups without and with the lent servers.
        wake, sleep: seconds from the word to a server that serves head, and to servers that all sleep.
    """

    def __init__(self) -> None:
        self.alone, self.together = Rate(), Rate()
        self.wake, self.sleep = Average(), Average()
        self._lent_last = False
        self._num_without_gain = 0

    @property
    def switch_s(self) -> float | None:
        """Seconds of lending and taking back; None before both were measured."""
        return None if self.wake.value is None or self.sleep.value is None else self.wake.value + self.sleep.value

    @property
    def shortest_s(self) -> float:
        """Seconds of the shortest wait that is lent; 0 while a switch is not measured."""
        return (LEND_AGAIN if self._lent_last else LEND_FROM) * (self.switch_s or 0.0)

    def judge(
        self, num_missing: int, *, num_lent: int, num_others: int, num: float = 0.0, seconds: float = 0.0
    ) -> Verdict:
        """Whether to lend now.

        Args:
            num_missing: groups that have to come in before there is a batch.
            num_lent, num_others: servers that are alive, on the trainer's devices and on others.
            num, seconds: groups that came in since the devices were taken back, and how long ago that was.
        """
        if num_missing <= 0:
            return Verdict(False, "ready", 0.0)
        if num_others == 0:
            # Also while no server is there yet at all: those that start find the devices free.
            return Verdict(True, "nobody_else", math.inf, math.inf)
        if num_lent == 0:
            return Verdict(False, "no_server")
        alone, together = self.alone.per_s(num, seconds), self.together.per_s()
        wait_s = None if alone is None else num_missing / alone if alone > 0 else math.inf
        wake_s, sleep_s = self.wake.value, self.sleep.value
        if wait_s is None or wake_s is None or sleep_s is None:
            return Verdict(True, "unmeasured", wait_s)
        if wait_s < self.shortest_s:
            return Verdict(False, "short_wait", wait_s)
        if math.isinf(wait_s):
            return Verdict(True, "gain", wait_s, math.inf)
        if together is None or self._num_without_gain >= PROBE_AFTER:
            return Verdict(True, "unmeasured", wait_s)
        saved_s = wait_s - lent_wait_s(num_missing, num_missing / wait_s, together, wake_s, sleep_s)
        return Verdict(saved_s > 0, "gain" if saved_s > 0 else "no_gain", wait_s, saved_s)

    def still_waking(self, seconds: float) -> None:
        """The devices were taken back so long after they were lent, and no server had woken: it takes longer still."""
        self.wake.note(max(seconds, self.wake.value or 0.0))

    def waited(self, verdict: Verdict) -> None:
        """A wait is over, and this was the last word on it. What was not tried is forgotten bit by bit."""
        self._lent_last = verdict.lends
        self._num_without_gain = self._num_without_gain + 1 if verdict.reason == "no_gain" else 0
        if verdict.reason == "short_wait":
            self.wake.forget()
            self.sleep.forget()


def lent_wait_s(num_missing: int, alone: float, together: float, wake_s: float, sleep_s: float) -> float:
    """Seconds until the trainer has its devices back and a batch, if it lends them now: the formula above.

    Args:
        alone, together: groups a second; `alone` > 0.
    """
    late = num_missing - alone * wake_s
    if late <= 0:
        return num_missing / alone + sleep_s
    return wake_s + (late / together if together > 0 else math.inf) + sleep_s
