"""A private Redis Cluster for tests: real nodes on loopback, joined without redis-cli."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event
from time import monotonic
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.support.ports import reserved_ports
from tests.support.redis_server import RedisServer, running_redis

JOIN_DEADLINE_S = 30.0
_CHECK_S = 0.02
_never = Event()


class ClusterNode:
    """One server of the cluster, its ports and its id."""

    def __init__(self, server: RedisServer, port: int, bus: int) -> None:
        self.server, self.port, self.bus = server, port, bus
        self.id = self.ask("CLUSTER", "MYID").decode()

    def ask(self, *command: Any) -> Any:
        with self.server.client() as client:
            client.response_callbacks.clear()  # what the server said, not what redis-py makes of it
            return client.execute_command(*command)

    def facts(self) -> dict[str, str]:
        """CLUSTER INFO."""
        lines = self.ask("CLUSTER", "INFO").decode().split()
        return dict(line.split(":", 1) for line in lines)


class RedisCluster:
    """Nodes that know each other. `url` names the first."""

    def __init__(self, masters: list[ClusterNode], replicas: list[ClusterNode]) -> None:
        self.masters, self.replicas = masters, replicas

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.masters[0].port}"

    @property
    def nodes(self) -> list[ClusterNode]:
        return [*self.masters, *self.replicas]

    def holder(self, key: str) -> ClusterNode:
        """The node that holds a key now."""
        slot = key_slot(key.encode())
        for first, last, (_, port, *_), *_ in self._running().ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody holds slot {slot}")

    def keys(self, match: str) -> dict[int, list[str]]:
        """Port of a node -> the keys that it holds as a master."""
        found: dict[int, list[str]] = {}
        for node in self.nodes:
            with node.server.client() as client:
                if client.info("replication")["role"] == "master":
                    found[node.port] = sorted(key.decode() for key in client.scan_iter(match))
        return found

    def begin_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, target: ClusterNode) -> None:
        for node in [target, *(node for node in self.masters if node is not target)]:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def await_joined(self) -> None:
        """Until every node that runs sees all slots held and every other node."""
        expected = {"cluster_state": "ok", "cluster_known_nodes": str(len(self.nodes))}
        until(lambda: all(expected.items() <= node.facts().items() for node in self.nodes), "the nodes to join")

    def _running(self) -> ClusterNode:
        for node in self.nodes:
            with suppress(redis.ConnectionError):
                node.ask("PING")
                return node
        raise AssertionError("no node of the cluster runs")


def until(condition: Any, what: str) -> None:
    """Wait for a condition that only asking shows, for example what nodes have told each other."""
    deadline = monotonic() + JOIN_DEADLINE_S
    while not condition():
        assert monotonic() < deadline, f"waited {JOIN_DEADLINE_S} s for {what}"
        _never.wait(_CHECK_S)


@contextmanager
def running_cluster(num_masters: int = 3, *, num_replicas: int = 0, timeout_ms: int = 1000) -> Iterator[RedisCluster]:
    """A started cluster; the replicas are the first masters' and fail over by themselves."""
    with ExitStack() as stack:
        nodes = [_start(stack, timeout_ms) for _ in range(num_masters + num_replicas)]
        cluster = RedisCluster(nodes[:num_masters], nodes[num_masters:])
        for i, node in enumerate(nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        share = -(-REDIS_CLUSTER_HASH_SLOTS // num_masters)
        for i, node in enumerate(cluster.masters):
            last = min((i + 1) * share, REDIS_CLUSTER_HASH_SLOTS) - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", i * share, last)
        for node in nodes[1:]:
            nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        cluster.await_joined()
        for replica, master in zip(cluster.replicas, cluster.masters, strict=False):
            until(
                lambda r=replica, m=master: m.id in r.ask("CLUSTER", "NODES").decode(), "the replica to know its master"
            )
            replica.ask("CLUSTER", "REPLICATE", master.id)
            until(lambda r=replica: b"master_link_status:up" in r.ask("INFO", "replication"), "the replica to catch up")
        yield cluster


def _start(stack: ExitStack, timeout_ms: int) -> ClusterNode:
    """A node on ports that stay its own while it is killed and started again."""
    port, bus = stack.enter_context(reserved_ports(2))
    options = ("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", str(bus))
    options += ("--cluster-node-timeout", str(timeout_ms), "--cluster-replica-validity-factor", "0")
    options += ("--repl-diskless-sync-delay", "0")
    return ClusterNode(stack.enter_context(running_redis(appendonly=True, options=options)), port, bus)
