"""Which server takes a command: here the one of the address; see `sentinel` and `cluster` for the others."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import redis

from buffer.redis_store.address import Address
from buffer.redis_store.connections import Command, Connections, connections_to


class Nodes(Protocol):
    """The servers behind an address: one (nodes), the primary that Sentinel names (sentinel), or a cluster's (cluster).

    Thread-safe. Raises redis.RedisError only, or a BufferError that no repeat mends. Nothing here repeats a command
    or sleeps: `server.RedisServer` does both, in one place.
    """

    is_one: bool
    """Whether one server holds all keys, so that one transaction may touch any of them."""

    def at(self, key: str) -> Connections:
        """To the server that holds `key`."""
        ...

    def ask(self, key: str, command: Command) -> Any:
        """The answer of the server that holds `key`, also while it moves to another one."""
        ...

    def every(self) -> Mapping[str, Connections]:
        """All servers that hold keys, by names that stay."""
        ...

    def by_server(self, keys: Sequence[str]) -> list[list[str]]:
        """The keys in lists, each of them held by one server."""
        ...

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        """The keys in lists, each of which one command may name."""
        ...

    def learn(self, error: redis.RedisError) -> None:
        """What the error says about who holds what, before the command is repeated."""
        ...

    def close(self) -> None:
        """Let go of all connections, each when its answer has been read."""
        ...


class OneServer:
    """The server at the address. After a fail-over the same name or socket leads to its successor."""

    is_one = True

    def __init__(self, address: Address, timeout_s: float) -> None:
        host, port = address.hosts[0] if address.hosts else ("", 0)
        self._server = connections_to(address, host, port, timeout_s)

    def at(self, key: str) -> Connections:
        return self._server

    def ask(self, key: str, command: Command) -> Any:
        return self._server.ask(command)

    def every(self) -> Mapping[str, Connections]:
        return {"": self._server}

    def by_server(self, keys: Sequence[str]) -> list[list[str]]:
        return [list(keys)] if keys else []

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        return self.by_server(keys)

    def learn(self, error: redis.RedisError) -> None:
        if not isinstance(error, redis.ResponseError) or isinstance(error, redis.ReadOnlyError):
            self._server.drop_idle()

    def close(self) -> None:
        self._server.close()
