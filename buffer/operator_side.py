"""The operator's side of the replay buffer: look, open and close admission, and decide about the dead."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from buffer.answers import DeadLetter, Entry
from buffer.attached import Attached
from buffer.books import DEAD, LEASED, READY
from buffer.draws import Draw, PassRate
from buffer.entries import entry_of
from buffer.status import Status, Usage, status_of, usage_of
from buffer.store import Taken

WITH_PAYLOAD = (READY, LEASED, DEAD)
"""States in which a group has a payload."""


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A group with a payload, its state, and of a dead one why it died."""

    state: str
    entry: Entry
    reason: str
    error: str


class OperatorSide(Attached):
    """See `buffer.replay_buffer.ReplayBuffer`."""

    def status(self, *, now_ms: int | None = None) -> Status:
        """The run at a glance. O(groups in the buffer); changes nothing.

        Args:
            now_ms: the time that ages are told by; None: this machine's clock.
        """
        return status_of(self.run, self._store.books(), self._limits, _now_ms() if now_ms is None else now_ms)

    def usage(self) -> Usage:
        """Bytes, reasons and waste, at a cost that does not grow with what is ready; changes nothing."""
        return usage_of(self._store.lineage(0, 0, ()), self._store.counts(), self._limits)

    def groups(self, *states: str, now_ms: int | None = None) -> tuple[HeldGroup, ...]:
        """The groups with a payload in these states (ready, leased, dead; none named: all), by ordinal. `fetch` reads
        their entries. O(groups in the buffer); changes nothing.

        Args:
            now_ms: the time that ages are told by; None: this machine's clock.
        """
        books = self._store.books()
        now = _now_ms() if now_ms is None else now_ms
        return tuple(
            HeldGroup(
                card.state,
                entry_of(Taken(ordinal, books.oldest_effective(card.index.ranges), card), books.trained, now),
                card.reason,
                card.error,
            )
            for ordinal, card in sorted(books.cards.items())
            if card.key and card.state in (states or WITH_PAYLOAD)
        )

    def draws(self) -> tuple[Mapping[int, Draw], Mapping[int, PassRate]]:
        """What was drawn, by ordinal (the newest buffer.max_draws), and the newest result of each prompt of these."""
        books = self._store.books()
        return dict(sorted(books.draws.items())), dict(sorted(books.pass_rates.items()))

    def pause(self) -> None:
        """Admit nobody until resume(). What is in flight goes on."""
        self._store.operate({"paused": "1"})

    def resume(self) -> None:
        """Undo pause() and stop()."""
        self._store.operate({"paused": "0", "stopped": "0"})

    def stop(self) -> None:
        """Ask both clusters to leave in good order. The next recover() takes it back."""
        self._store.operate({"stopped": "1"})

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The groups that died, by ordinal."""
        books = self._store.books()
        letters = []
        for ordinal, died_ms in sorted(books.dead.items()):
            card = books.cards[ordinal]
            taken = Taken(ordinal, books.oldest_effective(card.index.ranges), card)
            entry = entry_of(taken, books.trained, died_ms) if card.key else None
            letters.append(DeadLetter(ordinal, card.attempt, card.reason, card.error, died_ms, entry))
        return tuple(letters)

    def resubmit(self, ordinals: Iterable[int]) -> tuple[int, ...]:
        """Play dead prompts again, with all their attempts before them. Answers which of them were dead."""
        found, trash = self._store.resubmit(tuple(ordinals))
        self._delete(trash)
        return found

    def purge(self, ordinals: Iterable[int]) -> tuple[int, ...]:
        """Drop the payloads of dead letters, not their reasons. Answers whose were dropped."""
        found, trash = self._store.purge(tuple(ordinals))
        self._delete(trash)
        return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
