"""The ledger on a Redis server: one Lua script per transition. What each is given and answers stands in its header."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from buffer.books import STATES, Books, Index, Spent
from buffer.claims import MAX_EXCUSES
from buffer.closing import MAX_POISON
from buffer.draws import NO_RESULT, Draw, PassRate, Result
from buffer.keys import AUDIT_KEYS, ledger_key, parse_payload_key
from buffer.lineage import Ledger
from buffer.payloads.redis import Blobs, RedisPayloads
from buffer.redis_replies import (
    batch_of,
    books_of,
    done_of,
    draw_parts,
    granted_of,
    info_blob,
    ledger_blob,
    outline_of,
    ranges_blob,
    rates_of,
    record_of,
    result_parts,
    spent_parts,
    status_of,
    swept_of,
    whole,
)
from buffer.scripts import Script, script
from buffer.store import Batch, Clock, Done, Granted, Limits, Refused, Renewed, Swept, Waited

_MAX_SOURCES = 512


class Server(Blobs, Protocol):
    """What the ledger needs of a server; `redis_store.RedisServer` is one."""

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any: ...
    def run_script_after(
        self,
        key: str,
        after: str,
        deadline_s: float,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
    ) -> Any: ...
    def write_and_run(
        self, key: str, blob: bytes, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]
    ) -> Any: ...
    def read_together(self, key: str, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]: ...
    def hash(self, key: str) -> dict[bytes, bytes]: ...
    def last_id(self, key: str) -> str: ...
    def read_stream(self, key: str, after: str, deadline_s: float) -> list[tuple[str, str]]: ...
    def remove_members(self, key: str, members: Sequence[str]) -> None: ...
    def close(self) -> None: ...


class RedisStore:
    """See `buffer.store.Store`."""

    writes_payloads = True

    def __init__(self, run: str, server: Server, clock: Clock | None = None, *, owns_server: bool = True) -> None:
        self.run = run
        self._owns_server = owns_server
        self._server = server
        self._clock = clock
        self._checked = False
        self._scripts: dict[str, tuple[Script, list[str]]] = {}

    def of_run(self, run: str) -> "RedisStore":
        """The store of another run on the same server."""
        return RedisStore(run, self._server, self._clock, owns_server=False)

    def payloads(self) -> RedisPayloads:
        """The home of payloads on this server."""
        return RedisPayloads(self._server)

    def register(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        reply = self._run("register", *(part for item in fields.items() for part in item))
        return record_of(dict(zip(reply[::2], reply[1::2], strict=True)))

    def record(self) -> Mapping[str, str]:
        return record_of(self._server.hash(ledger_key(self.run, "run")))

    def reserve(self, token: str, worker: str, limits: Limits, offered: Sequence[Draw] = ()) -> Granted | Refused:
        sizes = (limits.claim_ms, limits.max_bytes, limits.max_group_bytes)
        own = (token, worker, *sizes, limits.on_stale, limits.max_draws)
        return granted_of(self._run("reserve", *own, *draw_parts(offered)))

    def pass_rates(self, prompts: Sequence[int]) -> tuple[PassRate | None, ...]:
        return rates_of(self._run("pass_rates", *prompts))

    def renew(
        self, ordinal: int, token: str, oldest: tuple[int, int] | None, num_sampled: int, limits: Limits
    ) -> Renewed:
        reply = self._run("renew", ordinal, token, limits.claim_ms, *(oldest or (-1, -1)), num_sampled)
        state, trained, ahead, taken, stopped, effective = reply
        return Renewed(state.decode(), trained, ahead, taken, stopped == 1, None if effective == b"" else effective)

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
        index_parts = (index.num_bytes, ranges_blob(index), info_blob(index), sum(index.sampled))
        own = (ordinal, token, key, *index_parts, limits.on_stale, limits.max_stale, *result_parts(result))
        return status_of(self._run("put", *own, payload=None if blob is None else (key, blob)))

    def park(self, ordinal: int, token: str, key: str, index: Index) -> tuple[str, tuple[str, ...]]:
        index_parts = (index.num_bytes, ranges_blob(index), info_blob(index))
        return status_of(self._run("park", ordinal, token, key, *index_parts))

    def filter(
        self, ordinal: int, token: str, reason: str, spent: Spent, result: Result = NO_RESULT
    ) -> tuple[str, tuple[str, ...]]:
        return status_of(self._run("filter", ordinal, token, reason, *spent_parts(spent), *result_parts(result)))

    def release(
        self, ordinal: int, token: str, reason: str, error: str, kind: str, spent: Spent, limits: Limits
    ) -> tuple[str, tuple[str, ...]]:
        most = (limits.max_attempts, limits.max_dead_bytes)
        return status_of(
            self._run("release", ordinal, token, reason, error, kind, *most, *spent_parts(spent)),
        )

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
        return batch_of(
            self._run(
                "lease",
                *(branch, nonce, number, step, count, oldest_allowed, wait_ms),
                *(limits.order, limits.on_stale, limits.max_stale, limits.max_bytes, limits.max_group_bytes),
                after=after,
            )
        )

    def give_back(self, branch: int, nonce: str, ordinals: Sequence[int], reason: str, limits: Limits) -> Done:
        most = (limits.max_attempts, limits.max_dead_bytes)
        return done_of(self._run("give_back", branch, nonce, reason, *most, *ordinals))

    def advance(self, branch: int, nonce: str, number: int, limit: int, per_version: int, window: int) -> Done:
        return done_of(self._run("advance", branch, nonce, number, limit, per_version, window))

    def commit(self, branch: int, nonce: str, ledger: Ledger) -> Done:
        return done_of(self._run("commit", branch, ledger_blob(ledger), nonce))

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
        return done_of(
            self._run(
                "recover",
                *(nonce, ledger_blob(ledger), number, limit, per_version, window, seen, end),
                *(limits.max_dead_bytes, MAX_POISON),
            )
        )

    def sweep(self, limits: Limits) -> Swept:
        most = (limits.max_attempts, limits.max_dead_bytes, MAX_EXCUSES)
        return swept_of(self._run("sweep", limits.claim_ms, *most))

    def resubmit(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        found, trash = self._run("resubmit", *ordinals)
        return tuple(found), tuple(key.decode() for key in trash)

    def purge(self, ordinals: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        found, trash = self._run("purge", *ordinals)
        return tuple(found), tuple(key.decode() for key in trash)

    def operate(self, fields: Mapping[str, str]) -> None:
        self._run("pause", fields.get("paused", ""), fields.get("stopped", ""))

    def evaluate(self, branch: int, nonce: str, label: str, closed: str, spent: Sequence[Spent]) -> Done:
        return done_of(
            self._run("evaluate", branch, nonce, label, closed, *(p for one in spent for p in spent_parts(one)))
        )

    def drop(self) -> tuple[str, ...]:
        return tuple(sorted(key.decode() for key in self._run("drop")))

    def named(self, keys: Sequence[str]) -> set[str]:
        parsed = [(parts[1], parts[2], key) for key in keys if (parts := parse_payload_key(key))]
        return {key.decode() for key in self._run("named", *(part for one in parsed for part in one))}

    def forget(self, keys: Iterable[str]) -> None:
        if members := list(keys):
            self._server.remove_members(ledger_key(self.run, "trash"), members)

    def books(self) -> Books:
        self._check_types()
        # Not by a script: Lua would hold all of it once more, and its garbage would slow the others down.
        reads = [whole(name, ledger_key(self.run, name)) for name in AUDIT_KEYS]
        return books_of(self._server.read_together(ledger_key(self.run, "run"), reads))

    def lineage(self, watermark: int, count: int, named: Sequence[int]) -> Books:
        """See `buffer.lineage.outline`."""
        return outline_of(self._run("lineage", watermark, count, *named))

    def counts(self) -> dict[str, int]:
        return dict(zip((*STATES, "next_ordinal"), self._run("counts"), strict=True))

    def hint(self) -> str:
        return self._server.last_id(ledger_key(self.run, "hints"))

    def wait_for_hint(self, after: str, kind: str | None, deadline_s: float, num_ready: int) -> Waited:
        """See `buffer.store.Store`.

        A server that lost its tail may give ids below `after`: such a hint is missed, and the deadline ends the wait.
        """
        key, deadline, seen = ledger_key(self.run, "hints"), time.monotonic() + deadline_s, 0
        while (left := deadline - time.monotonic()) > 0:
            entries = self._server.read_stream(key, after, left)
            after = entries[-1][0] if entries else after
            kinds = [of for _, of in entries if kind in (None, of)]
            seen += kinds.count("ready")
            if seen >= num_ready or len(kinds) > kinds.count("ready"):
                return Waited(after, True, seen)
        return Waited(after, False, seen)

    def report(self, source: str, facts: str) -> None:
        self._run("report", source, facts, _MAX_SOURCES)

    def reports(self) -> dict[str, tuple[int, str]]:
        found = self._server.hash(ledger_key(self.run, "reports"))
        parted = {source.decode(): facts.decode().partition(" ") for source, facts in found.items()}
        return {source: (int(at), facts) for source, (at, _, facts) in parted.items()}

    def close(self) -> None:
        if self._owns_server:
            self._server.close()

    def _run(
        self,
        name: str,
        *arguments: str | bytes | int,
        payload: tuple[str, bytes] | None = None,
        after: tuple[str, float] | None = None,
    ) -> Any:
        self._check_types()
        return self._call(name, *arguments, payload=payload, after=after)

    def _check_types(self) -> None:
        if not self._checked:
            # A key of another type would stop a script half-way, and nothing is rolled back.
            self._call("types")
            self._checked = True

    def _call(
        self,
        name: str,
        *arguments: str | bytes | int,
        payload: tuple[str, bytes] | None = None,
        after: tuple[str, float] | None = None,
    ) -> Any:
        one, keys = self._scripts.get(name) or self._prepare(name)
        # "" lets the script ask the server's clock.
        now: str | int = "" if self._clock is None else self._clock()
        if payload is not None:
            return self._server.write_and_run(*payload, one, keys, (now, *arguments))
        if after is not None:
            hints = ledger_key(self.run, "hints")
            return self._server.run_script_after(hints, *after, one, keys, (now, *arguments))
        return self._server.run_script(one, keys, (now, *arguments))

    def _prepare(self, name: str) -> tuple[Script, list[str]]:
        one = script(name)
        prepared = self._scripts[name] = (one, [ledger_key(self.run, key) for key in one.keys])
        return prepared
