"""The ledger in the memory of one process: the rules of `buffer.ledger` under a lock. For tests and single-process
runs."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from threading import Condition

from buffer import admission, batches, claims, closing, ledger, letters
from buffer.books import Books, Index, Spent
from buffer.draws import NO_RESULT, Draw, PassRate, Result
from buffer.lineage import Ledger, outline
from buffer.store import RECORD_NUMBERS, Batch, Clock, Done, Granted, Limits, Refused, Renewed, Swept, Waited

_NUM_HINTS = 256


@dataclass
class MemoryServer:
    """What the stores of one process share: the books of each run, and the lock that makes a transition atomic."""

    books: dict[str, Books] = field(default_factory=dict)
    hints: dict[str, deque[tuple[int, str]]] = field(default_factory=dict)
    reports: dict[str, dict[str, tuple[int, str]]] = field(default_factory=dict)
    changed: Condition = field(default_factory=Condition)
    num_hints: int = 0


class MemoryStore:
    """See `buffer.store.Store`."""

    writes_payloads = False

    def __init__(self, run: str, server: MemoryServer | None = None, clock: Clock | None = None) -> None:
        self.run = run
        self._server = server or MemoryServer()
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)

    def of_run(self, run: str) -> "MemoryStore":
        """The store of another run in the same memory."""
        return MemoryStore(run, self._server, self._clock)

    def register(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        with self._transition() as books:
            known = {name: value for name, value in fields.items() if value and books.record.get(name)}
            if all(books.record[name] == value for name, value in known.items()):
                books.record.update({name: value for name, value in fields.items() if value})
            return dict(books.record)

    def record(self) -> Mapping[str, str]:
        with self._transition() as books:
            numbers = {name: str(int(getattr(books, name))) for name in RECORD_NUMBERS}
            return {**books.record, "evaluation": books.evaluation, **numbers}

    def reserve(self, token: str, worker: str, limits: Limits, offered: Sequence[Draw] = ()) -> Granted | Refused:
        with self._transition() as books:
            answer = admission.reserve(books, self._clock(), token, worker, limits, offered)
            return replace(answer, last_hint=self._last()) if isinstance(answer, Refused) else answer

    def pass_rates(self, prompts: Sequence[int]) -> tuple[PassRate | None, ...]:
        with self._transition() as books:
            return tuple(books.pass_rates.get(prompt) for prompt in prompts)

    def renew(
        self, ordinal: int, token: str, oldest: tuple[int, int] | None, num_sampled: int, limits: Limits
    ) -> Renewed:
        with self._transition() as books:
            return claims.renew(books, self._clock(), ordinal, token, oldest, num_sampled, limits)

    def put(
        self,
        ordinal: int,
        token: str,
        key: str,
        index: Index,
        limits: Limits,
        blob: bytes | None = None,
        result: Result = NO_RESULT,
    ) -> tuple[str, tuple[str, ...]]:
        with self._transition() as books:
            status = claims.put(books, self._clock(), ordinal, token, key, index, limits, result)
            return status, _dumped(books)

    def park(self, ordinal: int, token: str, key: str, index: Index) -> tuple[str, tuple[str, ...]]:
        with self._transition() as books:
            return claims.park(books, ordinal, token, key, index), _dumped(books)

    def filter(
        self, ordinal: int, token: str, reason: str, spent: Spent, result: Result = NO_RESULT
    ) -> tuple[str, tuple[str, ...]]:
        with self._transition() as books:
            return claims.filter_group(books, ordinal, token, reason, spent, result), _dumped(books)

    def release(
        self, ordinal: int, token: str, reason: str, error: str, kind: str, spent: Spent, limits: Limits
    ) -> tuple[str, tuple[str, ...]]:
        with self._transition() as books:
            status = claims.release(books, self._clock(), ordinal, token, reason, error, kind, spent, limits)
            return status, _dumped(books)

    def lease(
        self,
        branch: int,
        nonce: str,
        number: int,
        step: int,
        count: int,
        oldest_allowed: int,
        wait_ms: int,
        limits: Limits,
        after: tuple[str, float] | None = None,
    ) -> Batch:
        if after is not None:
            self.wait_for_hint(after[0], None, after[1], 1)
        with self._transition() as books:
            now = self._clock()
            batch = batches.lease(books, now, branch, nonce, number, step, count, oldest_allowed, wait_ms, limits)
            # A card goes on changing under the next transition; the answer must not.
            taken = tuple(replace(one, card=replace(one.card)) for one in batch.taken)
            return replace(batch, taken=taken, trash=_dumped(books), last_hint=self._last())

    def give_back(self, branch: int, nonce: str, ordinals: Sequence[int], reason: str, limits: Limits) -> Done:
        with self._transition() as books:
            done = batches.give_back(books, self._clock(), branch, nonce, ordinals, reason, limits)
            return replace(done, trash=_dumped(books))

    def advance(self, branch: int, nonce: str, number: int, limit: int, per_version: int, window: int) -> Done:
        with self._transition() as books:
            return batches.advance(books, branch, nonce, number, limit, per_version, window)

    def commit(self, branch: int, nonce: str, ledger: Ledger) -> Done:
        with self._transition() as books:
            done = closing.commit(books, self._clock(), branch, nonce, ledger)
            return replace(done, trash=_dumped(books))

    def recover(
        self,
        nonce: str,
        ledger: Ledger,
        number: int,
        limit: int,
        per_version: int,
        window: int,
        seen: int,
        end: int,
        limits: Limits,
    ) -> Done:
        with self._transition() as books:
            now = self._clock()
            done = closing.recover(books, now, nonce, ledger, number, limit, per_version, window, seen, end, limits)
            return replace(done, trash=_dumped(books))

    def sweep(self, limits: Limits) -> Swept:
        with self._transition() as books:
            return claims.sweep(books, self._clock(), False, limits)

    def resubmit(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        with self._transition() as books:
            return letters.resubmit(books, ordinals), _dumped(books)

    def purge(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        with self._transition() as books:
            return letters.purge(books, ordinals), _dumped(books)

    def operate(self, fields: Mapping[str, str]) -> None:
        with self._transition() as books:
            books.paused = fields.get("paused", str(int(books.paused))) == "1"
            books.stopped = fields.get("stopped", str(int(books.stopped))) == "1"
            books.num_stops += fields.get("stopped") == "1"
            books.hints.append("room")

    def evaluate(self, branch: int, nonce: str, label: str, closed: str, spent: Sequence[Spent]) -> Done:
        with self._transition() as books:
            return batches.evaluate(books, branch, nonce, label, closed, spent)

    def drop(self) -> tuple[str, ...]:
        with self._transition() as books:
            keys = {*books.trash, *(key for card in books.cards.values() for key in (card.key, card.parked_key) if key)}
            for kept in (self._server.books, self._server.reports):
                kept.pop(self.run, None)
            return tuple(sorted(keys))

    def named(self, keys: Sequence[str]) -> set[str]:
        """Those payload keys of this run that a card names, or that a living claim may be about to put."""
        with self._transition() as books:
            named = {key for card in books.cards.values() for key in (card.key, card.parked_key)}
            return {key for key in keys if key in named or key.rpartition(":")[2] in books.claims}

    def forget(self, keys: Iterable[str]) -> None:
        with self._transition() as books:
            books.trash.difference_update(keys)

    def books(self) -> Books:
        with self._transition() as books:
            return deepcopy(books)

    def lineage(self, watermark: int, count: int, named: Sequence[int]) -> Books:
        """See `buffer.lineage.outline`."""
        with self._transition() as books:
            return outline(books, watermark, count, named)

    def counts(self) -> dict[str, int]:
        with self._transition() as books:
            return ledger.counts(books)

    def hint(self) -> str:
        with self._server.changed:
            return self._last()

    def wait_for_hint(self, after: str, kind: str | None, deadline_s: float, num_ready: int) -> Waited:
        def kinds() -> list[str]:
            return [of for at, of in self._hints() if at > int(after) and kind in (None, of)]

        def news() -> bool:
            came = kinds()
            return came.count("ready") >= num_ready or len(came) > came.count("ready")

        with self._server.changed:
            ended = self._server.changed.wait_for(news, deadline_s)
            return Waited(self._last(), ended, kinds().count("ready"))

    def report(self, source: str, facts: str) -> None:
        with self._server.changed:
            self._server.reports.setdefault(self.run, {})[source] = (self._clock(), facts)

    def reports(self) -> dict[str, tuple[int, str]]:
        with self._server.changed:
            return dict(self._server.reports.get(self.run, {}))

    def close(self) -> None:
        """Nothing to close: the memory goes with the last reference."""

    @contextmanager
    def _transition(self) -> Iterator[Books]:
        with self._server.changed:
            books = self._server.books.setdefault(self.run, Books())
            yield books
            books.dumped.clear()  # those that no answer carried are for sweep to find
            if books.hints:
                for kind in books.hints:
                    self._server.num_hints += 1
                    self._hints().append((self._server.num_hints, kind))
                books.hints.clear()
                self._server.changed.notify_all()

    def _hints(self) -> deque[tuple[int, str]]:
        return self._server.hints.setdefault(self.run, deque(maxlen=_NUM_HINTS))

    def _last(self) -> str:
        hints = self._hints()
        return str(hints[-1][0]) if hints else "0"


def _dumped(books: Books) -> tuple[str, ...]:
    keys = tuple(books.dumped)
    books.dumped.clear()
    return keys
