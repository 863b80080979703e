"""A run of the buffer for tests: both sides of one ledger, in memory or on a private Redis, with a clock of its own."""

import secrets
from collections.abc import Sequence
from typing import Any

from buffer import BufferConfig, Claim, Entry, Leased, Ledger, NotReady, ReplayBuffer, StalenessConfig, pack
from buffer.memory_store import MemoryStore
from buffer.payloads import Payloads
from buffer.payloads.memory import MemoryPayloads
from buffer.redis_store import RedisServer as Connection
from buffer.script_store import RedisStore
from buffer.store import Store
from tests.support.groups import group_for
from tests.support.redis_server import RedisServer

CONFIG = BufferConfig(claim_s=60, max_attempts=2, max_group_bytes=100_000, retry_s=5)


class BufferRun:
    """Settings of a run, and short ways to act on it. `server` None: in memory."""

    def __init__(self, server: RedisServer | None, **staleness: Any) -> None:
        self.name = f"run-{secrets.token_hex(4)}"
        self.now_ms = 1_700_000_000_000
        self.config, self.staleness = CONFIG, StalenessConfig(**staleness)
        self._server = server
        self._memory: MemoryStore | None = None
        self._payloads: Payloads | None = None
        self._open: list[ReplayBuffer] = []
        self.buffer = self.attach()
        self.branch, self.number = 0, 0

    def set(self, **settings: Any) -> None:
        """Change settings of the buffer (or, by `staleness`, of the staleness control) for everybody from here on."""
        self.staleness = settings.pop("staleness", self.staleness)
        self.config = BufferConfig(**{**dict(self.config), **settings})
        self.buffer = self.attach()

    def attach(self) -> ReplayBuffer:
        """What another process would hold."""
        store: Store
        if self._server is None:
            self._memory = self._memory or MemoryStore(self.name, clock=self.clock)
            self._payloads = self._payloads or Payloads(MemoryPayloads(), self.config.payload)
            store, payloads = self._memory, self._payloads
        else:
            store = RedisStore(self.name, Connection(self._server.url, self.config.retry_s), self.clock)
            payloads = Payloads(store.payloads(), self.config.payload)
        self._open.append(ReplayBuffer(store, payloads, self.config, self.staleness))
        return self._open[-1]

    def close(self) -> None:
        for buffer in self._open:
            buffer.close()

    def clock(self) -> int:
        return self.now_ms

    def passes(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def recover(
        self, *, limit: int = 0, per_version: int = 2, ledger: Ledger | None = None, number: int = 0
    ) -> "BufferRun":
        """A new trainer takes over."""
        self.buffer = self.attach()
        self.number = number
        self.branch = self.buffer.recover(
            secrets.token_hex(8), ledger, number=number, limit=limit, groups_per_version=per_version
        )
        self.limit, self.per_version = limit, per_version
        return self

    def version(self, number: int | None = None, branch: int | None = None) -> int:
        return pack(self.branch if branch is None else branch, self.number if number is None else number)

    def claim(self, worker: str = "w") -> Claim:
        answer = self.buffer.reserve(worker)
        assert isinstance(answer, Claim), answer
        return answer

    def claims(self) -> list[Claim]:
        """All that admission grants now."""
        granted = []
        while isinstance(answer := self.buffer.reserve("w"), Claim):
            granted.append(answer)
        return granted

    def make(self, count: int = 1, *versions: int) -> list[Claim]:
        """Reserve and put some groups."""
        made = []
        for _ in range(count):
            claim = self.claim()
            self.buffer.put(claim, group_for(claim, *(versions or (self.version(),))))
            made.append(claim)
        return made

    def try_lease(self, count: int | None = None, step: int | None = None) -> Leased | NotReady:
        count = self.per_version if count is None else count
        return self.buffer.lease(self.branch, self.number, self.number + 1 if step is None else step, count)

    def lease(self, count: int | None = None, step: int | None = None) -> tuple[Entry, ...]:
        answer = self.try_lease(count, step)
        assert isinstance(answer, Leased), answer
        return answer.entries

    def train(self, count: int | None = None) -> list[int]:
        """One step and version: lease, train, advance. Answers the ordinals."""
        ordinals = [entry.ordinal for entry in self.lease(count)]
        self.number += 1
        self.advance()
        return ordinals

    def advance(self) -> None:
        self.buffer.advance(self.branch, self.number, limit=self.limit, groups_per_version=self.per_version)

    def checkpoint(self, trained: Sequence[int], *, commit: bool = True) -> Ledger:
        ledger = self.buffer.ledger(self.branch, self.number, trained)
        if commit:
            self.buffer.commit(self.branch, ledger)
        return ledger

    def counts(self, *states: str) -> tuple[int, ...]:
        counts = self.buffer.counts()
        return tuple(counts[state] for state in states)

    def audit(self) -> dict[str, int]:
        """Reasons so far; the books must be in order."""
        audit = self.buffer.audit(payloads=True)
        assert audit.ok, audit.problems
        return dict(audit.by_reason)
