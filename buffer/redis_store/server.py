"""Commands to the run's Redis with bounded retry: what `script_store` and `payloads.redis` need of a server.

All repeats are made here, in `RedisServer._retry`. Every command is idempotent, so a repeat is harmless, also when
only the reply was lost; `retry_s` bounds it. A call ends after `retry_s` and one last attempt, whose connect, wait and
answer are bounded by timeouts. A block in the server (XREAD) is cut into slices shorter than the timeout of an answer,
so that a quiet stream is never taken for a lost server.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event, Lock
from typing import Any, TypeVar

import redis

from buffer.errors import ServerLost
from buffer.redis_store.address import Address, parse
from buffer.redis_store.cluster import Cluster, leads_to_cluster
from buffer.redis_store.connections import Command
from buffer.redis_store.faults import given_up, refusal
from buffer.redis_store.nodes import Nodes, OneServer
from buffer.redis_store.sentinel import Sentinel
from buffer.scripts import Script
from buffer.server_checks import PROBE_KEY, check_info, parse_info

_T = TypeVar("_T")
_LONGEST_SLICE_S, _SHORTEST_SLICE_S = 4.0, 0.5
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0

_PROBE = "#!lua flags=allow-oom\nreturn redis.call('UNLINK', KEYS[1])"


class RedisServer:
    """The server, the primary behind Sentinel, or the cluster at an address. Thread-safe; a forked child connects
    anew."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._at: Address = parse(url)
        self.address = self._at.shown
        self._retry_s = retry_s
        self._slice_s = min(_LONGEST_SLICE_S, max(_SHORTEST_SLICE_S, retry_s))
        self._timeout_s = 2 * self._slice_s + 1.0
        self._begin(closed=False)

    def ask(self, key: str, *command: str | bytes | int) -> Any:
        """The server's answer to an idempotent command about `key`: bytes, integers, None, and lists of them.

        Raises:
            ServerRefused: password, permissions or TLS; ServerLost, ServerFull: after buffer.retry_s.
            BufferError: any other error of the server, for example a key that holds something else.
        """
        return self._retry(lambda nodes: nodes.ask(key, command))

    def check(self) -> None:
        """Refuse a server that must not be used as it is configured. Leaves nothing behind.

        Raises:
            ServerRefused: with the fix; ServerLost: nobody answered for buffer.retry_s.
        """
        infos = self._retry(lambda nodes: {name: one.ask(("INFO",)) for name, one in nodes.every().items()})
        for name, text in infos.items():
            check_info(f"{self.address}, node {name}" if name else self.address, parse_info(text))
        self.ask(PROBE_KEY, "EVAL", _PROBE, 1, PROBE_KEY)

    def is_cluster(self) -> bool:
        """Whether the address leads to a Redis Cluster. Raises as `ask` does."""
        return not self._retry(lambda nodes: nodes.is_one)

    def close(self) -> None:
        """Close every connection that is not in use; whoever waits in a retry gives up, and nobody can go on."""
        self._closed.set()
        with self._choosing:
            if self._nodes is not None:
                self._nodes.close()

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """The answer of one transition: integers, bytes, and lists of them."""
        rest = (len(keys), *keys, *arguments)
        return self._retry(lambda nodes: self._evaluate(nodes, script, rest))

    def run_script_after(
        self,
        key: str,
        after: str,
        deadline_s: float,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
    ) -> Any:
        """The same, when the stream `key` has an entry after `after`, or after `deadline_s` (at most one slice). Both
        travel together: the server goes on from the one to the other by itself."""
        block_ms = max(1, round(min(deadline_s, self._slice_s) * 1000))
        rest = (len(keys), *keys, *arguments)
        commands: list[Command] = [
            ("XREAD", "BLOCK", block_ms, "COUNT", 1, "STREAMS", key, after),
            ("EVALSHA", script.sha, *rest),
        ]

        def run(nodes: Nodes) -> Any:
            try:
                return nodes.at(key).ask_all(commands)[-1]
            except redis.exceptions.NoScriptError:
                return self._evaluate(nodes, script, rest)

        return self._retry(run)

    def write_and_run(
        self,
        key: str,
        blob: bytes,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
    ) -> Any:
        """The same, after a key was written that did not exist: in one transaction where one server holds all keys, so
        that both are done or neither (a queued command that lacks memory undoes the whole)."""
        rest = (len(keys), *keys, *arguments)

        def run(nodes: Nodes) -> Any:
            if not nodes.is_one:
                nodes.ask(key, ("SET", key, blob, "NX"))
                return self._evaluate(nodes, script, rest)
            try:
                return _transaction(nodes, key, [("SET", key, blob, "NX"), ("EVALSHA", script.sha, *rest)])[-1]
            except redis.exceptions.NoScriptError:
                return self._evaluate(nodes, script, rest)  # the key is written

        return self._retry(run)

    def _evaluate(self, nodes: Nodes, script: Script, rest: Command) -> Any:
        suffix = "_RO" if script.only_reads else ""  # needs no right to write, and says so to the server
        try:
            return nodes.ask(str(rest[1]), (f"EVALSHA{suffix}", script.sha, *rest))
        except redis.exceptions.NoScriptError:  # a new or restarted server; the text stays until the next restart
            return nodes.ask(str(rest[1]), (f"EVAL{suffix}", script.text, *rest))

    def read_together(self, key: str, commands: Sequence[Command]) -> list[Any]:
        """Answers to reads of keys that lie where `key` does, all of one moment."""
        return self._retry(lambda nodes: _transaction(nodes, key, commands))

    def hash(self, key: str) -> dict[bytes, bytes]:
        """All fields of a hash."""
        flat = self.ask(key, "HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def last_id(self, key: str) -> str:
        """Id of a stream's newest entry."""
        last = self.ask(key, "XREVRANGE", key, "+", "-", "COUNT", 1)
        return str(last[0][0].decode()) if last else "0-0"

    def read_stream(self, key: str, after: str, deadline_s: float) -> list[tuple[str, str]]:
        """(id, kind) of the entries after `after`; blocks until there is one, or for `deadline_s` (at most one
        slice)."""
        block_ms = max(1, round(min(deadline_s, self._slice_s) * 1000))
        found = self.ask(key, "XREAD", "BLOCK", block_ms, "STREAMS", key, after)
        entries = found[0][1] if found else []
        return [(at.decode(), dict(zip(flat[::2], flat[1::2], strict=True))[b"k"].decode()) for at, flat in entries]

    def remove_members(self, key: str, members: Sequence[str]) -> None:
        """Take members out of a set."""
        self.ask(key, "SREM", key, *members)

    def set_blob(self, key: str, blob: bytes) -> None:
        """Write a key that does not exist. NX: a repeat finds its own bytes, and what a put has made visible is never
        written over."""
        self.ask(key, "SET", key, blob, "NX")

    def get_blob(self, key: str) -> bytes | None:
        """The bytes under a key."""
        blob = self.ask(key, "GET", key)
        assert blob is None or isinstance(blob, bytes)
        return blob

    def get_blobs(self, keys: Sequence[str]) -> dict[str, bytes | None]:
        """The bytes under each key, asked for together."""
        found: dict[str, bytes | None] = {}
        for some in self._retry(lambda nodes: nodes.by_server(keys)):
            found.update(zip(some, self._try_each(some[0], [("GET", key) for key in some]), strict=True))
        return found

    def blob_size(self, key: str) -> int:
        """Bytes under a key; 0 if there is none."""
        return int(self.ask(key, "STRLEN", key))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes under a key from each start to each end, which may be past its own; asked for together."""
        commands: list[Command] = [("GETRANGE", key, start, end - 1) for start, end in ranges]
        return self._retry(lambda nodes: nodes.at(key).ask_all(commands))

    def unlink(self, keys: Sequence[str]) -> None:
        """Delete keys, wherever they lie."""
        for some in self._retry(lambda nodes: nodes.by_server(keys)):
            parts = self._retry(partial(_by_slot, some))
            self._try_each(some[0], [("UNLINK", *part) for part in parts])

    def scan(self, cursors: Mapping[str, int], match: str, count: int) -> tuple[dict[str, int], list[str]]:
        """One page on each server: the next cursors by server, and the keys found. A new or replaced server starts
        over."""

        def page(nodes: Nodes) -> tuple[dict[str, int], list[str]]:
            after, keys = {}, []
            for name, one in nodes.every().items():
                cursor, found = one.ask(("SCAN", cursors.get(name, 0), "MATCH", match, "COUNT", count))
                after[name] = int(cursor)
                keys += [key.decode(errors="replace") for key in found]  # a stranger's key must not stop a sweep
            return after, keys

        return self._retry(page)

    def idle_s(self, keys: Sequence[str]) -> dict[str, int]:
        """Seconds since each key was touched, of those that exist."""
        idle: dict[str, int] = {}
        for some in self._retry(lambda nodes: nodes.by_server(keys)):
            answers = self._try_each(some[0], [("OBJECT", "IDLETIME", key) for key in some])
            idle.update({key: seconds for key, seconds in zip(some, answers, strict=True) if seconds is not None})
        return idle

    def _try_each(self, key: str, commands: Sequence[Command]) -> list[Any]:
        """Answers to commands about keys of the server that holds `key`, in one go. One that fails is asked again by
        itself: its key may have moved."""
        answers = self._retry(lambda nodes: nodes.at(key).try_all(commands))
        return [
            self.ask(str(command[-1]), *command) if isinstance(answer, redis.ResponseError) else answer
            for command, answer in zip(commands, answers, strict=True)
        ]

    def _retry(self, attempt: Callable[[Nodes], _T]) -> _T:
        """The answer of an attempt; again, with growing pauses, while what stops it may pass."""
        if os.getpid() != self._pid:
            # A forked child must not speak on its parent's connections, nor wait for locks that its threads held.
            self._begin(closed=self._closed.is_set())
        deadline, pause = time.monotonic() + self._retry_s, 0.0  # at first at once: an idle connection may have died
        while not self._closed.is_set():
            nodes: Nodes | None = None
            try:
                nodes = self._nodes or self._find_nodes()
                return attempt(nodes)
            except redis.RedisError as error:
                if (refused := refusal(error, self.address)) is not None:
                    raise refused from error
                if nodes is not None:
                    nodes.learn(error)
                if time.monotonic() + pause > deadline:
                    raise given_up(error, self.address, self._retry_s) from error
            # close() sets the event, so that a thread in here ends at once. Not all workers come back together.
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LAST_PAUSE_S) or _FIRST_PAUSE_S
        raise ServerLost(f"this connection to {self.address} was closed by its owner.")

    def _begin(self, *, closed: bool) -> None:
        self._nodes: Nodes | None = None
        self._choosing = Lock()
        self._closed = Event()
        if closed:
            self._closed.set()
        self._pid = os.getpid()

    def _find_nodes(self) -> Nodes:
        """What kind of servers the address leads to: asked at the first call, never at construction."""
        kind: Callable[[Address, float], Nodes] = Sentinel
        if not self._at.service:
            kind = Cluster if leads_to_cluster(self._at) else OneServer
        with self._choosing:  # threads that ask at once share what the first has found, and its connections
            nodes = self._nodes = self._nodes or kind(self._at, self._timeout_s)
            if self._closed.is_set():
                nodes.close()
        return nodes


def _transaction(nodes: Nodes, key: str, commands: Sequence[Command]) -> list[Any]:
    *queued, done = nodes.at(key).try_all([("MULTI",), *commands, ("EXEC",)])
    for answer in (*queued, *(done if isinstance(done, list) else [done])):
        if isinstance(answer, redis.ResponseError):
            raise answer
    assert isinstance(done, list), "nothing is watched"
    return done


def _by_slot(keys: Sequence[str], nodes: Nodes) -> list[list[str]]:
    return nodes.by_slot(keys)
