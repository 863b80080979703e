"""When which fault comes: from the seed, every kind at least once; and the loop that takes them step by step."""

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.support.soak.faults import FAULTS
from tests.support.soak.journal import Journal
from tests.support.soak.scene import Condition, Fault, Scene, Steps

CONDITION_S = 60.0
"""How long a fault waits for a condition; then it is a violation."""
MEAN_PAUSE_S = 0.6


def schedule(seed: int, seconds: float) -> list[tuple[float, str]]:
    """(second, fault) in order. All kinds come once, shuffled, over the first half; the rest is drawn by weight."""
    rng = Random(f"schedule {seed}")
    kinds = list(FAULTS)
    rng.shuffle(kinds)
    planned = [(1.0 + 0.5 * seconds * index / len(kinds), kind) for index, kind in enumerate(kinds)]
    at = 1.0
    while at < seconds:
        at += rng.expovariate(1 / MEAN_PAUSE_S)
        planned.append((at, rng.choices(list(FAULTS), [fault.weight for fault in FAULTS.values()])[0]))
    return sorted(one for one in planned if one[0] < seconds)


@dataclass(slots=True)
class _Going:
    kind: str
    fault: Fault
    steps: Steps
    until_s: float
    waits_for: Condition | None = None


@dataclass(slots=True)
class Faults:
    """The faults that are due, those that go on, and how many of each kind there were."""

    scene: Scene
    planned: list[tuple[float, str]]
    journal: Journal
    counts: Counter[str] = field(default_factory=Counter)
    _due: list[str] = field(default_factory=list)
    _going: list[_Going] = field(default_factory=list)
    _random: dict[str, Random] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether all that was planned is over."""
        return not (self.planned or self._due or self._going)

    def look(self, second: float) -> None:
        """Begin what is due and possible, and take those that go on one step further."""
        while self.planned and self.planned[0][0] <= second:
            kind = self.planned.pop(0)[1]
            if kind not in self._due:  # those that wait would all come at once
                self._due.append(kind)
        # In order: what an earlier one waits for is not given to a later one.
        held = {name for going in self._going for name in going.fault.holds}
        shared = {name for going in self._going for name in going.fault.shares}
        for kind in list(self._due):
            fault = FAULTS[kind]
            if not (fault.holds & (held | shared) or fault.shares & held):
                self._due.remove(kind)
                self.counts[kind] += 1
                self.journal.write(f"fault_{kind}")
                self._going.append(_Going(kind, fault, fault.steps(self.scene), 0.0))
            held |= fault.holds
            shared |= fault.shares
        for going in list(self._going):
            self._step(going)

    def finish(self) -> None:
        """Begin nothing more but the kinds that never came."""
        left = [*self._due, *(kind for _, kind in self.planned)]
        self._due = [kind for kind in dict.fromkeys(left) if not self.counts[kind]]
        self.planned.clear()

    def _step(self, going: _Going) -> None:
        now_s = time.monotonic()
        if going.waits_for is not None:
            if not going.waits_for.is_true():
                if now_s < going.until_s:
                    return
                self.scene.cluster.violations.append(f"{going.kind}: not in {CONDITION_S} s: {going.waits_for.what}")
        elif now_s < going.until_s:
            return
        try:
            wanted = next(going.steps)
        except StopIteration:
            self._going.remove(going)
            self.journal.write(f"fault_{going.kind}_over")
            return
        going.waits_for = wanted if isinstance(wanted, Condition) else None
        going.until_s = now_s + (CONDITION_S if isinstance(wanted, Condition) else wanted)
