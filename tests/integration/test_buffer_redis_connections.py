"""The door's connections: bounded, shared by threads, never by processes, replaced when they die."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from buffer import BufferConfig, Claim, ReplayBuffer, ServerLost, ServerRefused, pack
from buffer.redis_store import RedisServer as Connection
from buffer.redis_store import connections
from tests.support.groups import group_for
from tests.support.ports import reserved_ports
from tests.support.redis_cluster import until
from tests.support.redis_relay import RedisRelay
from tests.support.redis_server import RedisServer, running_redis

CONFIG = BufferConfig(retry_s=0.3)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def num_clients(server: RedisServer, command: str | None = None) -> int:
    """Clients of the server, but for the one that asks; those whose last command was this, if one is named."""
    with server.client() as client:
        mine = str(client.client_id())
        return sum(one["id"] != mine and command in (None, one["cmd"]) for one in client.client_list())


# Bounded


def test_threads_share_a_bounded_number_of_connections(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    before = num_clients(server)
    door = Connection(server.url, 10)
    found: list[bytes | None] = []
    door.set_blob("shared", b"x")
    threads = [Thread(target=lambda: found.extend(door.get_blob("shared") for _ in range(50))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [b"x"] * 600
    assert num_clients(server) - before <= 3
    door.close()


def test_when_all_connections_stay_in_use_a_call_says_so_in_bounded_time(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr("buffer.redis_store.server._SHORTEST_SLICE_S", 0.05)
    door = Connection(server.url, 0.05)
    assert door.get_blob("nothing") is None
    held = door._nodes._server._take()  # as another thread would
    with pytest.raises(ServerLost, match="all 1 connections of this process were in use for"):
        door.get_blob("nothing")
    held.disconnect()
    door.close()


# Dead


def test_all_idle_connections_that_the_server_closed_are_replaced_at_once(server: RedisServer) -> None:
    """As after its restart, or a firewall that forgets quiet connections: one by one they would use up the retries."""
    with RedisRelay(server.socket) as relay:
        door = Connection(relay.url, 0.3)
        held = relay.num_held
        with relay.held_replies():
            threads = [Thread(target=lambda: door.get_blob("nothing")) for _ in range(8)]
            for thread in threads:
                thread.start()
            until(lambda: relay.num_held == held + 8, "eight calls to hold a connection each")
        for thread in threads:
            thread.join(10)
        relay.point_to(server.socket)  # which cuts them all
        assert door.get_blob("nothing") is None
        door.close()


def test_a_closed_door_stays_closed_in_a_forked_child_too(server: RedisServer) -> None:
    door = Connection(server.url, 0.3)
    door.get_blob("a")
    door.close()
    with pytest.raises(ServerLost, match="closed by its owner"):
        door.get_blob("a")
    assert _in_a_child(lambda: _raises(ServerLost, lambda: door.get_blob("a")))


# Processes


def test_a_forked_child_connects_anew_and_leaves_its_parents_connections_alone(server: RedisServer) -> None:
    door = Connection(server.url, 5)
    door.set_blob("forked", b"parent's")
    mine = _ids(server)

    def child() -> bool:
        door.set_blob("of the child", b"child's")
        return door.get_blob("forked") == b"parent's" and not _ids(server) <= mine

    assert _in_a_child(child)
    assert mine <= _ids(server), "the child's end closes what it opened and nothing else"
    assert [door.get_blob("forked"), door.get_blob("of the child")] == [b"parent's", b"child's"]
    assert mine <= _ids(server)
    door.close()


def test_a_fork_while_other_threads_are_in_calls_hangs_nobody(server: RedisServer) -> None:
    door = Connection(server.url, 5)
    door.set_blob("busy", b"x")
    with server.client() as client:
        client.xadd("quiet", {"k": "room"})
    waiters = [Thread(target=lambda: door.read_stream("quiet", "$", 1.0)) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    until(lambda: num_clients(server, "xread") == 4, "the threads to wait")
    assert _in_a_child(lambda: all(door.get_blob("busy") == b"x" for _ in range(20)))
    for waiter in waiters:
        waiter.join(10)
    door.close()


# Addresses


@pytest.mark.parametrize("by_port", [False, True])
def test_a_run_goes_over_a_socket_or_a_port(server: RedisServer, by_port: bool) -> None:
    with RedisRelay(server.socket, by_port=by_port) as relay:
        buffer = ReplayBuffer.connect(f"{relay.url}?db=1&client_name=worker-7", f"by-port-{by_port}", CONFIG)
        branch = buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
        claim = buffer.reserve("w")
        assert isinstance(claim, Claim)
        assert buffer.put(claim, group_for(claim, pack(branch, 0))) == "ready"
        with server.client() as client:
            assert {one["db"] for one in client.client_list() if one["name"] == "worker-7"} == {"1"}
        buffer.close()


def test_what_answers_but_is_no_redis_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(ServerRefused, match="is no Redis"):
            ReplayBuffer.connect(f"redis://127.0.0.1:{listener.getsockname()[1]}", "demo", CONFIG)
        thread.join()


def test_a_lost_server_is_named_by_every_host_of_its_address() -> None:
    with reserved_ports(2) as (one, other):
        named = rf"redis://user:\*\*\*@127\.0\.0\.1:{one},127\.0\.0\.1:{other} did not"
        with pytest.raises(ServerLost, match=named):
            ReplayBuffer.connect(f"redis://user:pw@127.0.0.1:{one},127.0.0.1:{other}", "demo", CONFIG)


def _ids(server: RedisServer) -> set[str]:
    with server.client() as client:
        mine = str(client.client_id())
        return {one["id"] for one in client.client_list()} - {mine}


def _raises(kind: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def _in_a_child(check: Callable[[], bool]) -> bool:
    """Whether the check is true in a forked child that ends within 30 s."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr)
        finally:
            os._exit(code)
    until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, "the child to end")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
