"""Two stores as one: every call goes to both, and their answers and books must agree afterwards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from buffer.books import Books, Index, Spent
from buffer.draws import NO_RESULT, Draw, PassRate, Result
from buffer.keys import LEDGER_KEYS, ledger_key
from buffer.lineage import Ledger
from buffer.memory_store import MemoryStore
from buffer.script_store import RedisStore
from buffer.store import Batch, Done, Granted, Limits, Refused, Renewed, Store, Swept, Waited
from tests.support.redis_server import RedisServer

_T = TypeVar("_T")


class TwinStore:
    """A `buffer.store.Store`. With `repeat` set, the next call is made twice, as after a lost reply."""

    writes_payloads = False

    def __init__(self, memory: MemoryStore, scripts: RedisStore, server: RedisServer) -> None:
        self.run = memory.run
        self.memory, self.scripts, self._server = memory, scripts, server
        self.repeat = False
        self._client = server.client()

    def of_run(self, run: str) -> "TwinStore":
        return TwinStore(self.memory.of_run(run), self.scripts.of_run(run), self._server)

    def register(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        return self._both(lambda store: store.register(fields))

    def record(self) -> Mapping[str, str]:
        return self._both(lambda store: store.record())

    def reserve(self, token: str, worker: str, limits: Limits, offered: Sequence[Draw] = ()) -> Granted | Refused:
        return self._both(lambda store: store.reserve(token, worker, limits, offered))

    def pass_rates(self, prompts: Sequence[int]) -> tuple[PassRate | None, ...]:
        return self._both(lambda store: store.pass_rates(prompts))

    def renew(
        self, ordinal: int, token: str, oldest: tuple[int, int] | None, num_sampled: int, limits: Limits
    ) -> Renewed:
        return self._both(lambda store: store.renew(ordinal, token, oldest, num_sampled, limits))

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
        return self._both(lambda store: store.put(ordinal, token, key, index, limits, result=result))

    def park(self, ordinal: int, token: str, key: str, index: Index) -> tuple[str, tuple[str, ...]]:
        return self._both(lambda store: store.park(ordinal, token, key, index))

    def filter(
        self, ordinal: int, token: str, reason: str, spent: Spent, result: Result = NO_RESULT
    ) -> tuple[str, tuple[str, ...]]:
        return self._both(lambda store: store.filter(ordinal, token, reason, spent, result))

    def release(
        self, ordinal: int, token: str, reason: str, error: str, kind: str, spent: Spent, limits: Limits
    ) -> tuple[str, tuple[str, ...]]:
        return self._both(lambda store: store.release(ordinal, token, reason, error, kind, spent, limits))

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
        return self._both(
            lambda store: store.lease(branch, nonce, number, step, count, oldest_allowed, wait_ms, limits)
        )

    def give_back(self, branch: int, nonce: str, ordinals: Sequence[int], reason: str, limits: Limits) -> Done:
        return self._both(lambda store: store.give_back(branch, nonce, ordinals, reason, limits))

    def advance(self, branch: int, nonce: str, number: int, limit: int, per_version: int, window: int) -> Done:
        return self._both(lambda store: store.advance(branch, nonce, number, limit, per_version, window))

    def commit(self, branch: int, nonce: str, ledger: Ledger) -> Done:
        return self._both(lambda store: store.commit(branch, nonce, ledger))

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
        return self._both(
            lambda store: store.recover(nonce, ledger, number, limit, per_version, window, seen, end, limits)
        )

    def sweep(self, limits: Limits) -> Swept:
        return self._both(lambda store: store.sweep(limits))

    def resubmit(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        return self._both(lambda store: store.resubmit(ordinals))

    def purge(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        return self._both(lambda store: store.purge(ordinals))

    def operate(self, fields: Mapping[str, str]) -> None:
        self._both(lambda store: store.operate(fields))

    def evaluate(self, branch: int, nonce: str, label: str, closed: str, spent: Sequence[Spent]) -> Done:
        return self._both(lambda store: store.evaluate(branch, nonce, label, closed, spent))

    def drop(self) -> tuple[str, ...]:
        return self._both(lambda store: store.drop())

    def named(self, keys: Sequence[str]) -> set[str]:
        return self._both(lambda store: store.named(keys))

    def forget(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self._both(lambda store: store.forget(keys))

    def books(self) -> Books:
        return self._both(lambda store: store.books())

    def lineage(self, watermark: int, count: int, named: Sequence[int]) -> Books:
        return self._both(lambda store: store.lineage(watermark, count, named))

    def counts(self) -> dict[str, int]:
        return self._both(lambda store: store.counts())

    def hint(self) -> str:
        return self.scripts.hint()

    def wait_for_hint(self, after: str, kind: str | None, deadline_s: float, num_ready: int) -> Waited:
        return self.scripts.wait_for_hint(after, kind, deadline_s, num_ready)

    def report(self, source: str, facts: str) -> None:
        self._both(lambda store: store.report(source, facts))

    def reports(self) -> dict[str, tuple[int, str]]:
        return self._both(lambda store: store.reports())

    def close(self) -> None:
        self._client.close()
        self.scripts.close()

    def save(self) -> tuple[Books, dict[str, bytes]]:
        """All that is durable now."""
        keys = [ledger_key(self.run, name) for name in LEDGER_KEYS]
        dumps = {key: dump for key in keys if (dump := self._client.dump(key)) is not None}
        return deepcopy(self.memory.books()), dumps

    def lose_tail(self, saved: tuple[Books, dict[str, bytes]]) -> None:
        """Go back to what was durable, as a server does that lost the end of its append-only file."""
        books, dumps = saved
        self.memory._server.books[self.run] = deepcopy(books)
        self._client.delete(*(ledger_key(self.run, name) for name in LEDGER_KEYS))
        for key, dump in dumps.items():
            self._client.restore(key, 0, dump)

    def _both(self, call: Callable[[Store], _T]) -> _T:
        if self.repeat:
            self.repeat = False
            self._both(call)
        ours, theirs = call(self.memory), call(self.scripts)
        assert _comparable(ours) == _comparable(theirs)
        assert self.memory.books() == self.scripts.books()
        return theirs


def _comparable(answer: Any) -> Any:
    """Without ids of hints, which every store draws for itself, and without the order of what goes to the trash."""
    if not is_dataclass(answer) or isinstance(answer, type):
        return (answer[0], sorted(answer[1])) if isinstance(answer, tuple) and len(answer) == 2 else answer
    changes: dict[str, Any] = {}
    if hasattr(answer, "last_hint"):
        changes["last_hint"] = ""
    if hasattr(answer, "trash"):
        changes["trash"] = tuple(sorted(answer.trash))
    return replace(answer, **changes)
