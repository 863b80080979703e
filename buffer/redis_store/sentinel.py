"""The primary that Sentinel names, asked again whenever the one that was named fails.

redis-py's Sentinel client is not used: it asks at every connection, inside the connection's own retries, and gives a
replica that was asked to write an error that looks like a lost connection.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import redis

from buffer.errors import ServerRefused
from buffer.redis_store.address import Address
from buffer.redis_store.connections import Command, Connections, ask_once, connections_to
from buffer.redis_store.faults import code_of
from buffer.server_checks import parse_info

_NOT_ABOUT_THE_PRIMARY = ("OOM", "LOADING", "BUSY", "MISCONF", "NOREPLICAS")


class Sentinel:
    """See `nodes.Nodes`."""

    is_one = True

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._lock = Lock()  # never held while somebody is asked
        self._servers: dict[tuple[str, int], Connections] = {}
        self._primary: Connections | None = None
        """Who was named last. It is kept when it is doubted, because it is most often named again."""
        self._is_doubted = True

    def at(self, key: str) -> Connections:
        primary = self._primary
        return self._find() if primary is None or self._is_doubted else primary

    def ask(self, key: str, command: Command) -> Any:
        return self.at(key).ask(command)

    def every(self) -> Mapping[str, Connections]:
        return {"": self.at("")}

    def by_server(self, keys: Sequence[str]) -> list[list[str]]:
        return [list(keys)] if keys else []

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        return self.by_server(keys)

    def learn(self, error: redis.RedisError) -> None:
        if code_of(error) not in _NOT_ABOUT_THE_PRIMARY:
            self._is_doubted = True
            for server in self._open_servers():
                server.drop_idle()

    def close(self) -> None:
        for server in self._open_servers():
            server.close()

    def _open_servers(self) -> list[Connections]:
        with self._lock:
            return list(self._servers.values())

    def _find(self) -> Connections:
        # Without the lock: threads that look at once find the same, and none waits for another one's timeouts.
        place = self._ask_sentinels()
        with self._lock:
            primary = self._servers.get(place) or connections_to(self._address, *place, self._timeout_s)
            self._servers[place] = primary
        # Sentinel names the new primary a moment before it is one, and a Sentinel that was cut off names the old one.
        role = parse_info(primary.ask(("INFO", "replication"))).get("role")
        if role != "master":
            raise redis.ConnectionError(
                f"Sentinel names {place[0]}:{place[1]} as the primary, which says it is a {role}"
            )
        with self._lock:
            self._primary, self._is_doubted = primary, False
            others = [self._servers.pop(other) for other in [*self._servers] if other != place]
        for server in others:
            server.close()
        return primary

    def _ask_sentinels(self) -> tuple[str, int]:
        """Who is the primary, from the first that knows."""
        service, failures = self._address.service, []
        for host, port in self._address.hosts:
            command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
            try:
                found = ask_once(self._address, host, port, command, sentinel=True)
            except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
                raise ServerRefused(
                    f"the Sentinel at {host}:{port} refused the login: {error}. Its own user and password stand behind "
                    "the address: ?sentinel_username=...&sentinel_password=... (percent-encoded)."
                ) from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                failures.append(f"{host}:{port}: {error}")
                continue
            if found is not None:
                return found[0].decode(), int(found[1])
        if not failures:
            raise ServerRefused(
                f"none of the Sentinels of {self._address.shown} watches {service!r}. Write the name of their "
                "`sentinel monitor` line behind the hosts of buffer.url."
            )
        raise redis.ConnectionError(f"no Sentinel named the primary of {service!r}: {'; '.join(failures)}")
