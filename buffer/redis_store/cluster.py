"""The nodes of a Redis Cluster: a map from slots to servers, asked for again when a node fails, patched when one says
that a slot has moved.

redis-py's RedisCluster is not used. When a node does not answer it asks all nodes for the map while it holds one lock,
so the waits of all threads add up (three silent nodes, connect timeout 1 s: 4 s for one thread, 25 s for the last of
eight), it sleeps where nobody can wake it, and it turns a lost server into an error of its own kind.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from buffer.errors import ServerRefused
from buffer.redis_store.address import Address
from buffer.redis_store.connections import Command, Connections, ask_once, connections_to
from buffer.redis_store.faults import code_of
from buffer.server_checks import parse_info

Place = tuple[str, int]

_NOT_ABOUT_THE_MAP = ("OOM", "LOADING", "BUSY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "ASK")


@dataclass(frozen=True, slots=True)
class _Map:
    """Who holds which slot, and whom to ask for the next map: replicas too."""

    holders: list[Place | None]
    places: frozenset[Place] = field(default_factory=frozenset)


class Cluster:
    """See `nodes.Nodes`. The ledger's keys carry the tag {run}, one slot; payloads carry none, so they spread."""

    is_one = False

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._lock = Lock()  # for the two below; never held while somebody is asked
        self._servers: dict[Place, Connections] = {}
        self._map = _Map([None] * REDIS_CLUSTER_HASH_SLOTS)
        self._is_doubted = True

    def at(self, key: str) -> Connections:
        slot = key_slot(key.encode())
        place = self._newest_map().holders[slot]
        if place is None:
            self._is_doubted = True
            raise redis.ConnectionError(f"no node of the cluster holds slot {slot}, of key {key}")
        return self._server(place)

    def ask(self, key: str, command: Command) -> Any:
        try:
            return self.at(key).ask(command)
        except redis.exceptions.MovedError:  # a kind of AskError, for `learn`
            raise
        except redis.exceptions.AskError as error:
            return self._server(self._place_in(error)).ask(command, asking=True)

    def every(self) -> Mapping[str, Connections]:
        places = sorted({place for place in self._newest_map().holders if place is not None})
        return {f"{host}:{port}": self._server((host, port)) for host, port in places}

    def by_server(self, keys: Sequence[str]) -> list[list[str]]:
        holders = self._newest_map().holders
        return _grouped(keys, [holders[key_slot(key.encode())] for key in keys])

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        return _grouped(keys, [key_slot(key.encode()) for key in keys])

    def learn(self, error: redis.RedisError) -> None:
        if isinstance(error, redis.exceptions.MovedError):
            with self._lock:
                self._map.holders[error.slot_id] = self._place_in(error)
            return
        if code_of(error) in _NOT_ABOUT_THE_MAP:
            return
        self._is_doubted = True
        for server in self._open_servers():
            server.drop_idle()

    def close(self) -> None:
        for server in self._open_servers():
            server.close()

    def _newest_map(self) -> _Map:
        return self._find() if self._is_doubted else self._map

    def _server(self, place: Place) -> Connections:
        with self._lock:
            if place not in self._servers:
                self._servers[place] = connections_to(self._address, *place, self._timeout_s)
            return self._servers[place]

    def _place_in(self, error: redis.exceptions.AskError) -> Place:
        """Where a redirection leads. Without a host: to another port of the host that was asked."""
        asked = self._map.holders[error.slot_id]
        return error.host or (asked[0] if asked else self._address.hosts[0][0]), error.port

    def _open_servers(self) -> list[Connections]:
        with self._lock:
            return list(self._servers.values())

    def _find(self) -> _Map:
        # Without the lock: threads that look at once find the same, and none waits for another one's timeouts.
        askable = list({*self._map.places, *self._address.hosts})
        random.shuffle(askable)  # all clients of a cluster look at once when a node fails
        failures = []
        for host, port in askable:
            try:
                ranges = ask_once(self._address, host, port, ("CLUSTER", "SLOTS"))
            except (redis.ConnectionError, redis.TimeoutError) as error:
                failures.append(f"{host}:{port}: {error}")
                continue
            found = _map_of(ranges, host)
            with self._lock:
                self._map, self._is_doubted = found, False
                gone = [self._servers.pop(place) for place in [*self._servers] if place not in found.places]
            for server in gone:
                server.close()
            return found
        raise redis.ConnectionError(f"no node of the cluster told who holds what: {'; '.join(failures)}")


def _map_of(ranges: Sequence[Any], asked: str) -> _Map:
    """The answer to CLUSTER SLOTS: [first, last, [host, port, ...] of the primary, ... of its replicas]."""
    holders: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    places = set()
    for first, last, *nodes in ranges:
        # No host: the same as the one that was asked.
        found = [(node[0].decode() if node[0] else asked, int(node[1])) for node in nodes]
        holders[first : last + 1] = [found[0]] * (last + 1 - first)
        places.update(found)
    return _Map(holders, frozenset(places))


def _grouped(keys: Sequence[str], of: Sequence[object]) -> list[list[str]]:
    groups: dict[object, list[str]] = {}
    for key, group in zip(keys, of, strict=True):
        groups.setdefault(group, []).append(key)
    return list(groups.values())


def leads_to_cluster(at: Address) -> bool:
    """Whether the first server of the address that answers is a node of a cluster."""
    failure: redis.RedisError | None = None
    for host, port in at.hosts or (("", 0),):
        try:
            answer = ask_once(at, host, port, ("INFO", "cluster"))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            failure = error
            continue
        is_cluster = parse_info(answer).get("cluster_enabled", "0") == "1"
        if is_cluster and at.path:
            raise ServerRefused(
                f"{at.shown} is a socket of one node of a Redis Cluster, whose nodes name each other by host and port. "
                "Set buffer.url to redis://host:port of a node."
            )
        if is_cluster and at.db:
            raise ServerRefused(
                f"{at.shown} is a Redis Cluster, which has database 0 only. Leave it out of buffer.url."
            )
        if not is_cluster and len(at.hosts) > 1:
            raise ServerRefused(
                f"{at.shown} lists several servers, but {host}:{port} is no node of a cluster. Name one server, or the "
                "Sentinels that watch them: redis+sentinel://host,host/service."
            )
        return is_cluster
    assert failure is not None
    raise failure
