"""A primary with a replica, and Sentinels that watch them: real processes on loopback."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import redis

from tests.support.ports import reserved_ports
from tests.support.redis_cluster import until
from tests.support.redis_server import RedisServer, running_redis, server_binary

SERVICE = "the-run"
_FAST_SYNC = ("--repl-diskless-sync-delay", "0")


class Pair:
    """Two servers; the second follows the first until it is promoted."""

    def __init__(self, primary: RedisServer, replica: RedisServer, ports: Sequence[int], password: str) -> None:
        """`ports`: the primary's, the replica's, and one where nobody listens."""
        self.primary, self.replica = primary, replica
        self.primary_port, self.replica_port, self._nobodys_port = ports
        self.password = password

    def await_replica(self) -> None:
        """Until the replica has all that the primary has acknowledged."""
        with self.primary.client() as first, self.replica.client() as second:
            until(
                lambda: (
                    (info := second.info("replication"))["master_link_status"] == "up"
                    and info["master_repl_offset"] == first.info("replication")["master_repl_offset"]
                ),
                "the replica to catch up",
            )

    def leave_behind(self) -> None:
        """From here on the replica hears nothing of its primary, and stays a replica: what follows is a lost tail."""
        self.await_replica()
        with self.replica.client() as second:
            second.replicaof("127.0.0.1", self._nobodys_port)

    def promote(self) -> None:
        with self.replica.client() as second:
            second.replicaof("NO", "ONE")


class Sentinels:
    """`url` for the buffer; `client(i)` to look behind it."""

    def __init__(self, ports: Sequence[int], password: str, pair: Pair) -> None:
        self.ports, self.password, self.pair = ports, password, pair

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        login = f"operator:{quote(self.pair.password, safe='')}@" if self.pair.password else ""
        query = f"?sentinel_password={quote(self.password, safe='')}" if self.password else ""
        return f"redis+sentinel://{login}{hosts}/{SERVICE}/1{query}"

    def client(self, number: int = 0) -> "redis.Redis":
        return redis.Redis(port=self.ports[number], password=self.password or None)

    def primary_port(self) -> int:
        """Who is the primary, as the first Sentinel says."""
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])


@contextmanager
def running_pair(*, password: str = "") -> Iterator[Pair]:
    """A primary and its replica that has caught up, by port and by socket. With a password: of the user `operator`."""
    with ExitStack() as stack:
        ports = stack.enter_context(reserved_ports(3))
        login = ("--user", "operator", "on", f">{password}", "~*", "&*", "+@all") if password else ()
        follows = ("--masteruser", "operator", "--masterauth", password) if password else ()
        servers = [
            stack.enter_context(
                running_redis(
                    appendonly=True,
                    options=(*("--port", str(port), "--bind", "127.0.0.1", *login, *follows), *_FAST_SYNC),
                )
            )
            for port in ports[:2]
        ]
        pair = Pair(servers[0], servers[1], ports, password)
        with pair.replica.client() as second:
            second.replicaof("127.0.0.1", ports[0])
        pair.await_replica()
        yield pair


@contextmanager
def running_sentinels(pair: Pair, *, password: str = "", count: int = 3) -> Iterator[Sentinels]:
    """Sentinels that watch the pair and know each other; a majority fails over within a few seconds."""
    with ExitStack() as stack:
        sentinels = Sentinels(stack.enter_context(reserved_ports(count)), password, pair)
        for number, port in enumerate(sentinels.ports):
            directory = pair.primary.directory / f"sentinel-{number}"
            stack.callback(_stop, _start_sentinel(directory, port, pair, password, count))
        for number in range(count):
            until(lambda n=number: _sees_everybody(sentinels, n, count), "the Sentinels to find each other")
        yield sentinels


def _start_sentinel(directory: Path, port: int, pair: Pair, password: str, count: int) -> "subprocess.Popen[bytes]":
    directory.mkdir()
    lines = [f"port {port}", "bind 127.0.0.1", f"dir {directory}", f'logfile "{directory}/log"', "daemonize no"]
    lines += [f"sentinel monitor {SERVICE} 127.0.0.1 {pair.primary_port} {count // 2 + 1}"]
    lines += [f"sentinel down-after-milliseconds {SERVICE} 400", f"sentinel failover-timeout {SERVICE} 1000"]
    if pair.password:
        lines += [f"sentinel auth-user {SERVICE} operator", f"sentinel auth-pass {SERVICE} {pair.password}"]
    if password:
        lines += [f'requirepass "{password}"', f'sentinel sentinel-pass "{password}"']
    config = directory / "sentinel.conf"
    config.write_text("\n".join(lines) + "\n")
    return subprocess.Popen(
        [server_binary(), str(config), "--sentinel"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(20)


def _sees_everybody(sentinels: Sentinels, number: int, count: int) -> bool:
    try:
        with sentinels.client(number) as client:
            state = client.sentinel_master(SERVICE)
    except redis.ConnectionError:
        return False  # it is starting
    return state["num-other-sentinels"] == count - 1 and state["num-slaves"] == 1
