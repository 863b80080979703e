"""Waits inside the server, answers that come late, and callers that do not stay for them."""

import signal
from collections.abc import Iterator
from threading import Event, Thread, get_ident
from time import monotonic
from types import FrameType

import pytest

from buffer import Fenced, ReplayBuffer, ServerLost
from buffer.redis_store import RedisServer as Connection
from buffer.redis_store import connections
from tests.support.buffer_run import BufferRun
from tests.support.redis_cluster import until
from tests.support.redis_relay import RedisRelay
from tests.support.redis_server import RedisServer, running_redis

RETRY_S = 0.2
TIMEOUT_S = 1.2
"""Of an answer, with slices of 0.1 s."""


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buffer.redis_store.server._SHORTEST_SLICE_S", 0.1)
    monkeypatch.setattr("buffer.redis_store.server._LONGEST_SLICE_S", 0.1)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def relay(server: RedisServer) -> Iterator[RedisRelay]:
    with RedisRelay(server.socket) as relay:
        yield relay


def hasty(server: RedisServer | RedisRelay) -> BufferRun:
    run = BufferRun(server)
    run.set(retry_s=RETRY_S)
    return run.recover(limit=1, per_version=2)


def blocked(server: RedisServer, count: int) -> bool:
    with server.client() as client:
        return bool(client.info("clients")["blocked_clients"] == count)


# Blocks


def test_a_wait_that_is_longer_than_the_timeout_of_an_answer_ends_when_it_should(server: RedisServer) -> None:
    """B188."""
    run = hasty(server)
    hints = run.buffer.hints()
    assert run.buffer._store._server._timeout_s == TIMEOUT_S  # type: ignore[attr-defined]
    start = monotonic()
    assert not hints.wait(1.5)
    assert 1.5 <= monotonic() - start < 4
    run.close()


def test_a_server_that_freezes_during_a_wait_is_lost_in_bounded_time(server: RedisServer) -> None:
    """B189."""
    run = hasty(server)
    hints, errors = run.buffer.hints(), []

    def wait() -> None:
        start = monotonic()
        try:
            hints.wait(3600)
        except ServerLost as error:
            errors.append((monotonic() - start, str(error)))

    thread = Thread(target=wait)
    thread.start()
    until(lambda: blocked(server, 1), "the wait to begin")
    server.freeze()
    try:
        thread.join(20)
    finally:
        server.thaw()
    ((seconds, message),) = errors
    assert seconds < 8
    assert "did not answer" in message
    run.make(1)
    run.close()


def test_closing_does_not_wait_for_a_block_and_leaves_no_connection(server: RedisServer) -> None:
    with server.client() as client:
        before = len(client.client_list())
        run = hasty(server)
        hints, ended = run.buffer.hints(), Event()

        def wait() -> None:
            with pytest.raises(ServerLost, match="closed by its owner"):
                hints.wait(3600)
            ended.set()

        thread = Thread(target=wait)
        thread.start()
        until(lambda: blocked(server, 1), "the wait to begin")
        run.close()
        assert ended.wait(5), "a block is cut into slices"
        thread.join()
        until(lambda: len(client.client_list()) == before, "the connections to end")


# Late answers


class Interrupted(BaseException):
    """Like KeyboardInterrupt, from a signal of the test's own."""


def test_an_interrupted_command_never_gives_its_answer_to_the_next(server: RedisServer, relay: RedisRelay) -> None:
    """B190: the answer to `foo` comes when nobody waits for it any more."""
    door = Connection(relay.url, 5)
    door.set_blob("foo", b"foo's")
    door.set_blob("bar", b"bar's")

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    old, main = signal.signal(signal.SIGUSR1, interrupt), get_ident()
    try:
        held = relay.num_held
        with relay.held_replies():

            def kill() -> None:
                until(lambda: relay.num_held > held, "the answer to be under way")
                signal.pthread_kill(main, signal.SIGUSR1)

            thread = Thread(target=kill)
            thread.start()
            with pytest.raises(Interrupted):
                door.get_blob("foo")
            thread.join()
        assert [door.get_blob("bar") for _ in range(3)] == [b"bar's"] * 3
    finally:
        signal.signal(signal.SIGUSR1, old)
        door.close()


def test_a_command_interrupted_before_its_answer_is_read_leaves_it_to_nobody(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B190: the signal comes between the command and the read, so the connection itself knows of nothing wrong."""
    door = Connection(server.url, 5)
    door.set_blob("foo", b"foo's")
    door.set_blob("bar", b"bar's")

    def interrupt(connection: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(connections, "_answer", interrupt)
        with pytest.raises(Interrupted):
            door.get_blob("foo")
    assert [door.get_blob("bar") for _ in range(3)] == [b"bar's"] * 3
    door.close()


def test_a_call_that_its_caller_left_to_its_thread_takes_no_answer_of_others(relay: RedisRelay) -> None:
    """B190, as asyncio leaves a call: the thread goes on, nobody waits for it."""
    door = Connection(relay.url, 5)
    names = [f"key-{i}" for i in range(8)]
    for name in names:
        door.set_blob(name, name.encode())
    left: list[bytes | None] = []
    held = relay.num_held
    with relay.held_replies():
        threads = [Thread(target=lambda n=name: left.append(door.get_blob(n))) for name in names[:4]]
        for thread in threads:
            thread.start()
        until(lambda: relay.num_held == held + 4, "four answers to be under way")
    assert [door.get_blob(name) for name in names] == [name.encode() for name in names]
    for thread in threads:
        thread.join(10)
    assert sorted(left, key=str) == [name.encode() for name in names[:4]]
    door.close()


def test_a_request_that_arrives_after_a_new_trainer_took_over_is_fenced(server: RedisServer, relay: RedisRelay) -> None:
    """An old trainer stalls between its decision and the wire; what it sent arrives when it is replaced."""
    run = BufferRun(server).recover(limit=1, per_version=2)
    run.make(4)
    trained = run.train()
    ledger = run.checkpoint(trained)
    run.train()
    old = ReplayBuffer.connect(relay.url, run.name, run.config, run.staleness, clock=run.clock)
    old.counts()
    late: list[type[Exception] | None] = []

    def commit() -> None:
        try:
            old.commit(run.branch, run.buffer.ledger(run.branch, 2, [2, 3]))
        except Fenced:
            late.append(Fenced)

    held = relay.num_held
    with relay.held_requests():
        thread = Thread(target=commit)
        thread.start()
        until(lambda: relay.num_held > held, "the commit to be under way")
        new = BufferRun.recover(run, limit=1, per_version=2, ledger=ledger, number=1)
        before = new.buffer._store.books()
    thread.join(10)
    assert late == [Fenced]
    assert run.buffer._store.books() == before
    assert run.train() == [2, 3]
    old.close()
    run.close()
