"""Part servers on real sockets: strangers, slow and dead readers, ranks that are killed; nobody hangs, nobody pays."""

import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from tests.support.tcp_parts import DEADLINE_S, KEY, RawReader, open_tcp, serving, tcp_config
from weightsync.errors import DeadlineExceeded, Fenced, PartMissing, TransportError, TransportFull, TransportLost
from weightsync.log import open_log
from weightsync.log.records import Upload, VersionRecord
from weightsync.transport.base import part_key, upload_prefix
from weightsync.transport.tcp import TcpTransport
from weightsync.transport.tcp.frames import LENGTH, RANGE_BYTES
from weightsync.transport.tcp.greeting import hello, secret_of
from weightsync.transport.tcp.server import PartServer
from weightsync.versions import pack

SECRET = secret_of(tcp_config().seal_key(), "run")
BLOB = np.random.default_rng(3).bytes(5 * RANGE_BYTES + 17)


def key_of(version: int = 5, rank: int = 0, bucket: int = 0) -> str:
    return part_key(upload_prefix("run", Upload(version, version - 1, "n", "plan", ())), rank, bucket)


def put(transport: TcpTransport, blob: bytes = BLOB, **key: int) -> str:
    transport.put_part(key_of(**key), [memoryview(blob)], deadline_s=10.0)
    return key_of(**key)


def get(transport: TcpTransport, key: str, size: int = len(BLOB), deadline_s: float = 20.0) -> bytes:
    target = bytearray(size)
    transport.get_part_into(key, memoryview(target), deadline_s=deadline_s)
    return bytes(target)


def server_of(transport: TcpTransport) -> PartServer:
    assert transport._server is not None
    return transport._server


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
        end = monotonic() + DEADLINE_S
        while server_of(rank).num_readers:
            assert monotonic() < end, "a reader that stopped is still served"
            threading.Event().wait(0.05)
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


def test_a_rank_that_hangs_is_given_up_by_name_and_in_time(tmp_path: Path) -> None:
    """A dead machine accepts and says nothing; that is no reason to wait for the whole deadline."""
    with socket.create_server(("127.0.0.1", 0)) as dead:
        open_log(str(tmp_path), "run").put_endpoint(1, 0, f"tcp://127.0.0.1:{dead.getsockname()[1]}")
        reader = open_tcp(tmp_path, tcp_config(tcp={"stall_s": 0.3}))
        start = monotonic()
        with pytest.raises(DeadlineExceeded, match=r"get of part .* did not send anything for 0\.3 s"):
            get(reader, key_of(), deadline_s=30.0)
        with pytest.raises(DeadlineExceeded, match=r"get of part .*: not done in 0\.1 s"):
            get(reader, key_of(), deadline_s=0.1)
        assert monotonic() - start < 10
        reader.close()


RANK = """
import sys
from pathlib import Path
from tests.support.tcp_parts import open_tcp
from weightsync.transport.tcp import server

class Stuck:  # sends a first piece of a part and no more, like a process that is about to die
    def __getattr__(self, name): return getattr(self.memory, name)
    def view(self, key, at, most): return self.memory.view(key, at, most) if at < 1000000 else self.stop.wait()

transport = open_tcp(Path(sys.argv[1]))
transport.announce(int(sys.argv[2]), 0)
for line in sys.stdin:
    key, size = line.split()
    transport.put_part(key, [memoryview(bytes(int(size)))], deadline_s=10)
    if sys.argv[3:]:
        import threading
        stuck = Stuck(); stuck.memory, stuck.stop = transport._memory, threading.Event()
        transport._server._memory = stuck
    print("put", flush=True)
"""


class RankProcess:
    """A trainer's rank as a process of its own."""

    def __init__(self, home: Path, branch: int, *, sticks: bool = False) -> None:
        command = [sys.executable, "-c", RANK, str(home), str(branch), *(["sticks"] if sticks else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def put(self, key: str, size: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{key} {size}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "put\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def test_a_rank_killed_in_the_middle_of_a_part_is_lost_and_its_successor_is_found(
    tmp_path: Path, reader: TcpTransport
) -> None:
    size = 10 * RANGE_BYTES
    rank = RankProcess(tmp_path, 1, sticks=True)
    rank.put(key_of(), size)
    target = bytearray(b"\xff" * size)
    failed: list[BaseException] = []

    def read() -> None:
        try:
            reader.get_part_into(key_of(), memoryview(target), deadline_s=60.0)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while target[900_000]:  # a part is on its way: the rank dies now
        thread.join(0.01)
        assert thread.is_alive(), failed
    rank.kill()
    thread.join(20.0)
    assert [type(error) for error in failed] == [TransportLost]
    assert "its rank died" in str(failed[0])
    with pytest.raises(TransportLost, match="says its new address in the log"):
        get(reader, key_of(), size)
    # The trainer starts again: what the dead rank had is missing, which makes a receiver ask for an anchor.
    again = RankProcess(tmp_path, 2)
    again.put(key_of(version=6), size)
    assert get(reader, key_of(version=6), size) == bytes(size)
    with pytest.raises(PartMissing):
        get(reader, key_of(), size)
    again.kill()


def test_a_rank_that_starts_again_on_its_port_is_asked_over_new_connections(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        config = tcp_config(tcp={"first_port": probe.getsockname()[1], "num_ports": 1})
    reader = open_tcp(tmp_path, config)
    for version in (5, 6):
        with serving(tmp_path, config) as rank:
            key = put(rank, version=version)
            assert get(reader, key) == BLOB
            with pytest.raises(TransportError, match=r"cannot listen on ports .* first_port and num_ports"):
                open_tcp(tmp_path, config).announce(1, 1)
    with pytest.raises(TransportLost):
        get(reader, key_of(version=6))
    reader.close()


def test_a_process_that_announced_nothing_reads_and_never_puts(reader: TcpTransport) -> None:
    with pytest.raises(TransportError, match="announced no rank"):
        put(reader)
    with pytest.raises(PartMissing, match="nowhere"):
        get(reader, key_of())
    assert reader.uploads("w:") == []
    assert reader.delete("w:") == 0


def test_a_rank_whose_branch_is_over_can_neither_announce_nor_put(tmp_path: Path, rank: TcpTransport) -> None:
    put(rank)
    log = open_log(str(tmp_path), "run")
    log.claim(2)
    with pytest.raises(Fenced, match="branch 2"):
        put(rank, version=6)
    with pytest.raises(Fenced):
        rank.announce(1, 0)


def test_a_log_that_lost_its_tail_hears_the_address_again_with_the_next_upload(
    tmp_path: Path, rank: TcpTransport, reader: TcpTransport
) -> None:
    put(rank)
    for file in tmp_path.rglob("endpoints/*"):
        file.unlink()
    with pytest.raises(PartMissing):
        get(reader, key_of())
    put(rank, version=6)
    assert get(reader, key_of()) == BLOB


def test_one_rank_sweeps_the_memory_of_all_and_one_that_is_dead_is_told(tmp_path: Path, rank: TcpTransport) -> None:
    second = open_tcp(tmp_path)
    second.announce(1, 1)
    put(rank, b"words")
    put(second, b"more words", rank=1)
    prefix = key_of().removesuffix("0:0")
    assert rank.uploads("w:") == second.uploads("w:") == [prefix]
    assert rank.delete(prefix) == 2
    assert second._memory.num_bytes == 0
    put(rank, b"words")
    second.close()
    with pytest.raises(TransportLost):
        rank.delete(prefix)
    assert rank._memory.num_bytes == 0, "what can be deleted is"


def test_what_makes_head_stays_when_the_memory_is_full(tmp_path: Path) -> None:
    with serving(tmp_path, tcp_config(tcp={"keep_bytes": 400})) as rank:
        log = open_log(str(tmp_path), "run")
        log.flip(None, VersionRecord(0, None, "origin", "layout", 1, model_dir="/models/start"))
        base = 0
        for number in range(1, 5):
            version = pack(1, number)
            delta = Upload(version, base, f"d{number}", "plan", ())
            whole = Upload(version, version, f"a{number}", "plan", ()) if number == 3 else None
            for upload in (delta, whole):
                if upload is not None:
                    rank.put_part(part_key(upload_prefix("run", upload), 0, 0), [memoryview(bytes(90))], deadline_s=5.0)
            log.flip(base, VersionRecord(version, base, f"d{number}", "layout", number, delta, (), whole))
            base = version
        held = [upload.split(":")[4] for upload in rank.uploads("w:")]
        assert set(held) == {"d2", "d3", "a3", "d4"}
        late = Upload(pack(1, 5), base, "d5", "plan", ())
        rank.put_part(part_key(upload_prefix("run", late), 0, 0), [memoryview(bytes(150))], deadline_s=5.0)
        assert {upload.split(":")[4] for upload in rank.uploads("w:")} == {"a3", "d4", "d5"}
        with pytest.raises(TransportFull, match=r"weightsync\.tcp\.keep_bytes is 400"):
            rank.put_part(part_key(upload_prefix("run", late), 0, 1), [memoryview(bytes(251))], deadline_s=5.0)


def test_the_key_is_in_no_message(tmp_path: Path, rank: TcpTransport) -> None:
    other = open_tcp(tmp_path, tcp_config(key="another secret of ours"))
    with pytest.raises(TransportError) as caught:
        get(other, put(rank))
    assert KEY not in str(caught.value)
    assert "another secret" not in str(caught.value)
    other.close()
