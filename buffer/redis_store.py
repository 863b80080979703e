"""The only door to redis-py: connections to one Redis or Valkey server, with bounded retry. `script_store` is the
ledger on it.

Retries are ours, in `RedisServer.call`, and redis-py's are off. Its Retry counts attempts and knows no deadline,
sleeps where nobody can wake it, repeats a command without telling (a lost reply to a push or a pop is then two of
them), and does not retry a server that is loading, failing over or full. Here every command is idempotent, so a
repeat is harmless, and `retry_s` bounds it. Timeouts: redis-py would end a blocking read after its socket timeout,
so a block is cut into slices shorter than that.
"""

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from buffer.errors import BufferError, ServerFull, ServerLost, ServerRefused
from buffer.scripts import Script
from buffer.server_checks import check_info, masked

_T = TypeVar("_T")
_LONGEST_SLICE_S, _SHORTEST_SLICE_S = 4.0, 0.5
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0

# What passes by itself: no connection, loading its data, failing over, a replica that a failover is about to promote.
_PASSING = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.exceptions.TryAgainError)
_PASSING_CODES = ("LOADING", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "MISCONF")


class RedisServer:
    """A connection pool with bounded retry. Thread-safe."""

    def __init__(self, url: str, retry_s: float) -> None:
        self.address = masked(url)
        self._retry_s = retry_s
        self._closed = Event()
        self._slice_s = min(_LONGEST_SLICE_S, max(_SHORTEST_SLICE_S, retry_s))
        timeout = 2 * self._slice_s + 1.0
        try:
            self._client = redis.Redis.from_url(
                url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
            )
        except ValueError as error:
            raise ServerRefused(
                f"buffer.url = {self.address}: {error}. Expected redis://, rediss:// or unix://, special characters "
                "of a "
                "password percent-encoded."
            ) from error

    def call(self, command: Callable[["redis.Redis"], _T]) -> _T:
        """Run an idempotent command; again, with growing pauses, while what stops it may pass.

        Raises:
            ServerRefused: password or permissions; ServerLost, ServerFull: after buffer.retry_s.
            BufferError: any other error of the server, for example a key that holds something else.
        """
        deadline, pause = time.monotonic() + self._retry_s, _FIRST_PAUSE_S
        while not self._closed.is_set():
            try:
                return command(self._client)
            except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
                raise self._refused_password(error) from error
            except redis.exceptions.NoPermissionError as error:
                raise self._refused_permission(error) from error
            except redis.OutOfMemoryError as error:
                last: Exception = error
                failure: type[BufferError] = ServerFull
            except (*_PASSING, redis.ResponseError) as error:
                if isinstance(error, redis.ResponseError) and not self._passes(error):
                    raise self._error_of(error) from error
                last, failure = error, ServerLost
                if isinstance(error, redis.ReadOnlyError):  # it failed over: the name leads elsewhere now
                    self._client.connection_pool.disconnect()
            # close() sets the event, so that a thread in here ends at once.
            if time.monotonic() + pause > deadline:
                raise self._given_up(failure, last) from last
            self._closed.wait(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)
        self._let_go()  # of the connection that this thread had
        raise ServerLost(f"this connection to {self.address} was closed by its owner.")

    def check(self) -> None:
        """Refuse a server that must not be used as it is configured. Leaves nothing behind.

        Raises:
            ServerRefused: with the fix; ServerLost: nobody answered for buffer.retry_s.
        """
        self.call(lambda client: client.ping())
        check_info(self.address, self.call(lambda client: client.info()))
        probe = f"asyncrl:probe:{time.monotonic_ns()}"
        self.call(lambda client: client.set(probe, b"", px=10_000))
        self.call(lambda client: client.eval("#!lua\nreturn redis.call('UNLINK', KEYS[1])", 1, probe))

    def close(self) -> None:
        """Close every connection that is not in use; whoever waits in a retry gives up, and nobody can go on."""
        self._closed.set()
        self._let_go()

    def _let_go(self) -> None:
        # Only idle connections: closing one under a thread that reads from it breaks redis-py's reader.
        self._client.connection_pool.disconnect(inuse_connections=False)

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """The answer of one transition: integers, bytes, and lists of them."""

        def run(client: "redis.Redis") -> Any:
            try:
                return client.evalsha(script.sha, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:
                client.script_load(script.text)  # a new or restarted server; its text stays until the next restart
                return client.evalsha(script.sha, len(keys), *keys, *arguments)

        return self.call(run)

    def hash(self, key: str) -> dict[bytes, bytes]:
        """All fields of a hash."""
        fields: Any = self.call(lambda client: client.hgetall(key))  # typed sync | async
        return dict(fields)

    def last_id(self, key: str) -> str:
        """Id of a stream's newest entry."""
        last: Any = self.call(lambda client: client.xrevrange(key, count=1))
        return last[0][0].decode() if last else "0-0"

    def read_stream(self, key: str, after: str, deadline_s: float) -> list[tuple[str, str]]:
        """(id, kind) of the entries after `after`; blocks until there is one, or for `deadline_s` (at most one
        slice)."""
        block_ms = max(1, round(min(deadline_s, self._slice_s) * 1000))
        found: Any = self.call(lambda client: client.xread({key: after}, block=block_ms))
        return [(at.decode(), fields[b"k"].decode()) for _, entries in found or () for at, fields in entries]

    def remove_members(self, key: str, members: Sequence[str]) -> None:
        """Take members out of a set."""
        self.call(lambda client: client.srem(key, *members))

    def set_blob(self, key: str, blob: bytes) -> None:
        # NX: a repeat finds its own bytes; nothing that a put has made visible is ever written over.
        self.call(lambda client: client.set(key, blob, nx=True))

    def get_blob(self, key: str) -> bytes | None:
        blob = self.call(lambda client: client.get(key))
        assert blob is None or isinstance(blob, bytes)
        return blob

    def unlink(self, keys: Sequence[str]) -> None:
        self.call(lambda client: client.unlink(*keys))

    def scan(self, cursor: int, match: str, count: int) -> tuple[int, list[str]]:
        """One page: the next cursor, and the keys found."""
        found: Any = self.call(lambda client: client.scan(cursor, match=match, count=count))  # typed sync | async
        return int(found[0]), [key.decode() for key in found[1]]

    def idle_s(self, keys: Sequence[str]) -> list[int | None]:
        """Seconds since each key was touched; None where it is gone."""

        def ask(client: "redis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.object("IDLETIME", key)
            return pipe.execute(raise_on_error=False)

        return [answer if isinstance(answer, int) else None for answer in self.call(ask)]

    def _passes(self, error: redis.ResponseError) -> bool:
        return isinstance(error, _PASSING) or str(error).startswith(_PASSING_CODES)

    def _given_up(self, failure: type[BufferError], last: Exception) -> BufferError:
        if failure is ServerFull:
            return ServerFull(
                f"{self.address} had no memory left for buffer.retry_s = {self._retry_s} s: {last}. Raise its "
                "maxmemory above "
                "buffer.max_bytes + buffer.max_dead_bytes, or lower those."
            )
        return ServerLost(
            f"{self.address} did not answer for buffer.retry_s = {self._retry_s} s: {last}. Is the server running, "
            "and reachable "
            "from here? What was acknowledged is kept; start this process again when it answers."
        )

    def _refused_password(self, error: Exception) -> ServerRefused:
        return ServerRefused(
            f"{self.address} refused the password: {error}. Set user and password in buffer.url: "
            "redis://user:password@host, "
            "special characters percent-encoded."
        )

    def _refused_permission(self, error: Exception) -> ServerRefused:
        return ServerRefused(
            f"{self.address} denies this user what the buffer needs: {error}. Grant it: ACL SETUSER <user> ~* +@read "
            "+@write "
            "+@scripting +@connection +info +time."
        )

    def _error_of(self, error: Exception) -> BufferError:
        return BufferError(f"{self.address} answered: {error}")
