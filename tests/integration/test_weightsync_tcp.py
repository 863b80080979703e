"""Part servers on real sockets: strangers, slow, dead and many readers; nobody hangs, nobody pays."""

import errno
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from tests.support.tcp_parts import (
    BLOB,
    DEADLINE_S,
    KEY,
    RawReader,
    get,
    key_of,
    open_tcp,
    put,
    server_of,
    serving,
    tcp_config,
)
from weightsync.errors import PartMissing, TransportError
from weightsync.log import open_log
from weightsync.transport.tcp import TcpTransport, server
from weightsync.transport.tcp.frames import LENGTH, RANGE_BYTES
from weightsync.transport.tcp.greeting import hello, secret_of

SECRET = secret_of(tcp_config().seal_key(), "run")


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[TcpTransport]:
    with serving(tmp_path) as transport:
        yield transport


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[TcpTransport]:
    transport = open_tcp(tmp_path)
    yield transport
    transport.close()


def test_a_reader_with_another_key_is_refused_and_told_so(tmp_path: Path, rank: TcpTransport) -> None:
    key = put(rank)
    for settings in ({"key": "another secret of ours"}, {"key": None}):
        other = open_tcp(tmp_path, tcp_config(**settings))
        with pytest.raises(TransportError, match=r"refuses: weightsync\.key and run\.name must be the same"):
            get(other, key)
        with pytest.raises(TransportError, match="refuses"):
            other.delete("w:")
        other.close()
    assert rank.uploads("w:") == [key.removesuffix("0:0")]


def test_a_server_with_another_key_is_not_believed(tmp_path: Path, reader: TcpTransport) -> None:
    """Whoever takes a dead rank's port can refuse and cannot answer."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        open_log(str(tmp_path), "run").put_endpoint(1, 0, f"tcp://127.0.0.1:{impostor.getsockname()[1]}")

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(hello(bytes(32)))
                connection.recv(1 << 10)
                connection.sendall(LENGTH.pack(35) + b"\x91\xc4\x20" + bytes(32))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TransportError, match=r"did not prove that it has weightsync\.key"):
            get(reader, key_of())
        thread.join()


def test_a_run_without_a_key_works_on_this_machine_and_is_closed_to_other_runs(tmp_path: Path) -> None:
    config = tcp_config(key=None)
    with serving(tmp_path, config) as rank:
        key = put(rank)
        same = open_tcp(tmp_path, config)
        assert get(same, key) == BLOB
        same.close()
        with pytest.raises(EOFError):
            RawReader(server_of(rank).port).greet(secret_of(None, "other")).exactly(1)


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4, struct.pack("<I", 1 << 31), np.random.default_rng(9).bytes(4000)]
)
def test_noise_ends_its_connection_and_nothing_else(rank: TcpTransport, reader: TcpTransport, noise: bytes) -> None:
    key = put(rank)
    assert get(reader, key) == BLOB
    for greets in (False, True):
        stranger = RawReader(server_of(rank).port)
        if greets:
            stranger.greet(SECRET)
        stranger.socket.sendall(noise)
        assert stranger.ended()
        stranger.close()
    assert get(reader, key) == BLOB
    server_of(rank).check()


def until_nobody_is_served(rank: TcpTransport) -> None:
    end = monotonic() + DEADLINE_S
    while server_of(rank).num_readers:
        assert monotonic() < end, "a reader that is silent is still served"
        threading.Event().wait(0.05)


def test_a_stranger_that_says_nothing_is_dropped(rank: TcpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GREETING_S", 0.1)
    stranger = RawReader(server_of(rank).port)
    assert stranger.ended()
    stranger.close()


def test_a_reader_whose_connection_was_dropped_between_versions_makes_another(
    rank: TcpTransport, reader: TcpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_IDLE_S", 0.1)
    key = put(rank)
    for _ in range(2):
        assert get(reader, key) == BLOB
        until_nobody_is_served(rank)


def test_a_slow_reader_holds_neither_memory_nor_others_up(tmp_path: Path) -> None:
    config = tcp_config(tcp={"keep_bytes": len(BLOB) + 100})
    with serving(tmp_path, config) as rank:
        key = put(rank)
        slow = RawReader(server_of(rank).port, receive_buffer=4096).greet(SECRET)
        slow.ask("get", key, len(BLOB), 0, RANGE_BYTES)
        assert slow.answer() == ["part"]
        assert slow.exactly(1000) == BLOB[:1000]
        reader = open_tcp(tmp_path)
        assert get(reader, key) == BLOB
        # The part leaves the memory in the middle of its range: the slow reader's connection ends, and not with a lie.
        fresh = np.random.default_rng(4).bytes(len(BLOB))
        put(rank, fresh, version=6)
        assert rank._memory.num_bytes == len(BLOB)
        with pytest.raises(EOFError):
            slow.exactly(RANGE_BYTES)
        slow.close()
        assert get(reader, key_of(version=6)) == fresh
        with pytest.raises(PartMissing, match="does not have part"):
            get(reader, key)
        reader.close()


def test_a_reader_that_stops_reading_is_dropped_and_its_place_is_free(tmp_path: Path) -> None:
    config = tcp_config(tcp={"stall_s": 0.3, "max_connections": 1})
    with serving(tmp_path, config) as rank:
        key = put(rank)
        stuck = RawReader(server_of(rank).port, receive_buffer=4096).greet(SECRET)
        stuck.ask("get", key, len(BLOB), 0, RANGE_BYTES)
        other = open_tcp(tmp_path, config)
        with pytest.raises(TransportError, match=r"all its 1 connections are taken; raise weightsync\.tcp\.max_conn"):
            get(other, key)
        until_nobody_is_served(rank)
        assert get(other, key) == BLOB
        with pytest.raises(EOFError):
            stuck.exactly(RANGE_BYTES)
        other.close()
        stuck.close()


def test_strangers_that_fill_the_places_give_way_to_a_reader(tmp_path: Path) -> None:
    config = tcp_config(tcp={"max_connections": 3})
    with serving(tmp_path, config) as rank:
        key = put(rank)
        strangers = [RawReader(server_of(rank).port) for _ in range(3)]
        for stranger in strangers:
            stranger.content()
        reader = open_tcp(tmp_path, config)
        assert get(reader, key) == BLOB
        assert strangers[0].ended()
        assert server_of(rank).num_readers <= 3
        reader.close()
        for stranger in strangers:
            stranger.close()


def test_many_readers_at_once_get_the_same_bytes(tmp_path: Path, rank: TcpTransport) -> None:
    keys = [put(rank, BLOB[bucket:], bucket=bucket) for bucket in range(3)]
    failures: list[BaseException] = []

    def read() -> None:
        transport = open_tcp(tmp_path)
        try:
            for bucket, key in enumerate(keys):
                assert get(transport, key, len(BLOB) - bucket) == BLOB[bucket:]
        except BaseException as error:
            failures.append(error)
        finally:
            transport.close()

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_process_out_of_descriptors_accepts_its_readers_later(
    rank: TcpTransport, reader: TcpTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, accept, refusals = put(rank), socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def flaky(listener: socket.socket) -> object:
        if refusals:
            raise refusals.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", flaky)
    assert get(reader, key) == BLOB
    assert refusals == []
    assert "cannot be accepted" in caplog.text


def test_the_key_is_in_no_message(tmp_path: Path, rank: TcpTransport) -> None:
    other = open_tcp(tmp_path, tcp_config(key="another secret of ours"))
    with pytest.raises(TransportError) as caught:
        get(other, put(rank))
    assert KEY not in str(caught.value)
    assert "another secret" not in str(caught.value)
    other.close()
