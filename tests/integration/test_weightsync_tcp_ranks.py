"""Trainer ranks that serve their parts: killed, started again, replaced, full; readers are told the truth in time."""

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.support.tcp_parts import BLOB, get, key_of, open_tcp, put, server_of, serving, tcp_config
from weightsync.errors import DeadlineExceeded, Fenced, PartMissing, TransportError, TransportFull, TransportLost
from weightsync.log import open_log
from weightsync.log.records import Upload, VersionRecord
from weightsync.transport.base import part_key, upload_prefix
from weightsync.transport.tcp import TcpTransport
from weightsync.transport.tcp.frames import RANGE_BYTES
from weightsync.transport.tcp.server import PartServer
from weightsync.versions import pack


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[TcpTransport]:
    with serving(tmp_path) as transport:
        yield transport


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[TcpTransport]:
    transport = open_tcp(tmp_path)
    yield transport
    transport.close()


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


def test_a_rank_listens_on_loopback_unless_it_is_told_otherwise_and_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B217: whoever reads the log of a rank knows which networks can reach it."""
    with caplog.at_level(logging.INFO), serving(tmp_path, tcp_config(key=None)) as rank:
        port = server_of(rank).port
        assert server_of(rank)._listener.getsockname() == ("127.0.0.1", port)
        assert f"rank 0 listens on 127.0.0.1 port {port} and is read at tcp://127.0.0.1:{port}" in caplog.text


def test_a_server_that_broke_lets_nobody_put_parts_that_nobody_could_get(
    rank: TcpTransport, reader: TcpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    key = put(rank)
    monkeypatch.setattr(PartServer, "_turn", bug)
    with pytest.raises(TransportLost):
        get(reader, key)
    server_of(rank)._thread.join(20.0)
    with pytest.raises(TransportError, match=r"ended \(RuntimeError\('a bug of ours'\)\): no server can read"):
        put(rank, version=6)
