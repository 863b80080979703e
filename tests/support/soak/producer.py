"""A producer of a soak: reserve -> renew, park ... -> put | fail | abandon, several groups at once, until SIGTERM."""

import time
from collections.abc import Callable
from functools import partial

from buffer import Claim, CorruptPayload, Fenced
from buffer.answers import SweepReport
from tests.support.soak import processes
from tests.support.soak.fleet import version_of
from tests.support.soak.journal import Journal
from tests.support.soak.play import Play
from tests.support.soak.settings import Settings, prompt

TICK_S, SWEEP_EVERY_S = 0.02, 1.0


class Producer:
    """Its claims, and the rounds in which it looks after them."""

    def __init__(self, settings: Settings, journal: Journal, stop: processes.Stop) -> None:
        self._settings, self._journal, self._stop = settings, journal, stop
        self._buffer = settings.connect()
        self._hints = self._buffer.hints("room")
        self._plays: list[Play] = []
        self._swept_s = 0.0
        self._endings: dict[str, Callable[[Play], str]] = {
            "filter": self._filter,
            "always_fails": self._fail,
            "fails_once": partial(self._at_first, self._fail),
            "abandons_once": partial(self._at_first, self._abandon),
        }
        """fate -> how its group ends; any other is put."""

    def run(self) -> None:
        """Play until asked to stop; then park and give back, as on a notice of preemption."""
        while not self._stop.is_set():
            refused = len(self._plays) < self._settings.slots and not self._reserve()
            self._look_after()
            if refused and not self._plays:
                self._hints.wait(0.2)
            else:
                self._stop.wait(TICK_S)
        for play in self._plays:
            self._guarded(play, self._leave)
        self._buffer.close()

    def _reserve(self) -> bool:
        if self._settings.draining.exists() and not self._buffer.counts()["waiting"]:
            self._sweep()
            return False
        answer = self._buffer.reserve(self._journal.who)
        if not isinstance(answer, Claim):
            self._sweep()
            return False
        renew_at_s = time.monotonic() + self._settings.renew_every_s
        self._plays.append(Play(self._settings, answer, prompt(self._settings, answer.ordinal), renew_at_s))
        return True

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = time.monotonic()
            note_sweep(self._journal, self._buffer.sweep())

    def _look_after(self) -> None:
        version = version_of(self._settings.head)
        for play in self._plays:
            self._guarded(play, partial(self._go_on, version=version))
        self._plays = [play for play in self._plays if not play.ended]

    def _guarded(self, play: Play, act: Callable[[Play], str]) -> None:
        """Act; note what became of the group, if anything did."""
        try:
            outcome = act(play)
        except Fenced:
            outcome = "fenced_claim"
        if outcome:
            self._journal.write(outcome, ordinal=play.claim.ordinal, attempt=play.claim.attempt, fate=play.prompt.fate)
            play.ended = True

    def _go_on(self, play: Play, version: int) -> str:
        now_s = time.monotonic()
        if play.begun_s is None and play.claim.may_start_on(version):
            self._begin(play, now_s)
        whole = play.begun_s is not None and play.sample(now_s, version)
        if whole:
            return self._endings.get(play.prompt.fate, self._put)(play)
        if now_s >= play.renew_at_s:
            play.renew_at_s = now_s + self._settings.renew_every_s
            answer = self._buffer.renew(play.claim, play.oldest(), sum(play.sampled))
            if not answer.go_on:
                self._abandon(play)
                return f"told_{answer.reason}"
        if play.begun_s is not None and now_s >= play.park_at_s:
            play.park_at_s = now_s + self._settings.park_every_s
            self._park(play)
        return ""

    def _begin(self, play: Play, now_s: float) -> None:
        try:
            partials = self._buffer.fetch_partials(play.claim)
        except CorruptPayload:
            self._journal.write("corrupt_partials", ordinal=play.claim.ordinal)
            partials = None
        problem = play.begin(now_s, partials)
        if problem:
            self._journal.write("violation", problem=problem)
        if partials is not None:
            self._journal.write("continued", ordinal=play.claim.ordinal, tokens=partials.num_sampled)
        self._buffer.renew(play.claim, play.oldest(), sum(play.sampled))

    def _park(self, play: Play) -> None:
        partials = play.partials()
        if partials is not None and self._buffer.park(play.claim, partials, play.prompt.data_source):
            play.kept = play.sampled
            self._journal.write("parked", ordinal=play.claim.ordinal, tokens=partials.num_sampled)

    def _put(self, play: Play) -> str:
        return f"put_{self._buffer.put(play.claim, play.group())}"

    def _filter(self, play: Play) -> str:
        return f"put_{self._buffer.put(play.claim, play.group(), filtered='zero_variance')}"

    def _fail(self, play: Play) -> str:
        source = play.prompt.data_source
        return "failed_" + self._buffer.fail(
            play.claim, "reward_failed", "no verdict in time", sampled=play.sampled, data_source=source
        )

    def _abandon(self, play: Play) -> str:
        self._buffer.abandon(play.claim, sampled=play.lost, data_source=play.prompt.data_source)
        return "abandoned"

    def _leave(self, play: Play) -> str:
        if play.begun_s is not None:
            self._park(play)
        return self._abandon(play)

    def _at_first(self, end: Callable[[Play], str], play: Play) -> str:
        return end(play) if play.claim.attempt == 1 else self._put(play)


def note_sweep(journal: Journal, swept: SweepReport) -> None:
    """Write down what a sweep found, if it found anything."""
    for what, found in (("guarded", swept.guarded), ("excused", swept.excused), ("expired", swept.expired)):
        if found:
            journal.write(f"sweep_{what}", expired=swept.expired)


def main(settings: Settings, who: str) -> None:
    """A producer process."""
    processes.run(lambda journal, stop: Producer(settings, journal, stop).run(), settings, who)
