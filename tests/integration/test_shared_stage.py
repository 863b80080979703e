"""The servers of one machine bring each step once, whatever dies, and what they share is gone when nobody needs it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import ServerProcess, Trainer, fingerprint, reads
from weightsync.versions import pack

PARTS = 4  # of a version


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


@pytest.fixture
def started() -> Iterator[list[ServerProcess]]:
    servers: list[ServerProcess] = []
    yield servers
    for server in servers:
        if server.process.is_alive():
            server.kill()


def shared_files(server: ServerProcess) -> list[str]:
    """What lies in the shared folder but the file that says who uses it."""
    return sorted(path.name for path in server.shared_dir.iterdir() if path.name != "users")


def test_four_servers_read_each_part_once_and_hold_one_file(trainer: Trainer, started: list[ServerProcess]) -> None:
    trainer.publish(1)
    started += [trainer.server(f"s{i}") for i in range(4)]
    for have in (0, pack(1, 1), pack(1, 2)):
        for server in started:
            server.begin("stage", have)
        assert [server.until("answer") for server in started] == [
            ("delta", have + 1 if have else pack(1, 1), fingerprint(trainer.weights))
        ] * 4
        if have < pack(1, 2):
            trainer.publish(2 if have == 0 else 3)
    counts = reads(trainer.root)
    assert len(counts) == 3 * PARTS
    assert set(counts.values()) == {1}
    # One file of bytes: four links and the shared name. What the versions before needed is gone.
    (kept,) = started[0].shared_dir.glob("*.bin")
    assert kept.stat().st_nlink == 5
    links = [path for server in started for path in server.stage_dir.glob("parts-*.bin")]
    assert {path.stat().st_ino for path in links} == {kept.stat().st_ino}
    assert len(links) == 4
    for server in started[:3]:
        server.ask("leave")
    assert kept.exists()
    started[3].ask("leave")
    assert not started[3].shared_dir.exists()


def test_when_the_downloader_is_killed_in_the_middle_another_takes_over(
    trainer: Trainer, started: list[ServerProcess]
) -> None:
    trainer.publish(1)
    first = trainer.server("first", holds_at=3)
    first.begin("stage", 0)
    first.until("held")
    started += [first, *(trainer.server(f"s{i}") for i in range(2))]
    for server in started[1:]:
        server.begin("stage", 0)
    for server in started[1:]:
        # The wait is named: for what, and on whom.
        assert f"which first (process {first.process.pid}) brings" in server.until("waits")
    (half,) = [name for name in shared_files(first) if name.startswith(".")]
    assert half.endswith(".bin.tmp")
    first.kill()
    for server in started[1:]:
        assert server.until("answer") == ("delta", pack(1, 1), fingerprint(trainer.weights))
    # What it had read, two or three parts, is read again; the half file is used by nobody.
    counts = reads(trainer.root)
    assert len(counts) == PARTS
    assert max(counts.values()) == 2
    assert half not in shared_files(first)
    (kept,) = first.shared_dir.glob("*.bin")
    assert kept.stat().st_nlink == 3


def test_a_downloader_that_hangs_is_waited_for_half_the_time_and_then_done_without(
    trainer: Trainer, started: list[ServerProcess]
) -> None:
    trainer.publish(1)
    first, second = trainer.server("first", holds_at=1), trainer.server("second", stage_deadline_s=2.0)
    started += [first, second]
    first.begin("stage", 0)
    first.until("held")
    assert first.process.pid is not None
    os.kill(first.process.pid, signal.SIGSTOP)
    second.begin("stage", 0)
    assert "has not finished; it may hang. This server brings its own" in second.until("hangs")
    assert second.until("answer") == ("delta", pack(1, 1), fingerprint(trainer.weights))
    os.kill(first.process.pid, signal.SIGCONT)
    first.go_on()
    assert first.until("answer") == ("delta", pack(1, 1), fingerprint(trainer.weights))


def test_servers_at_different_versions_share_what_is_the_same_and_nothing_else(
    trainer: Trainer, started: list[ServerProcess]
) -> None:
    trainer.publish(1)
    old, other, new = (trainer.server(name) for name in ("old", "other", "new"))
    started += [old, other, new]
    assert new.ask("stage", 0)[1] == pack(1, 1)
    trainer.publish(2)
    expected = fingerprint(trainer.weights)
    for server, have in ((old, 0), (other, 0), (new, pack(1, 1))):
        server.begin("stage", have)
    assert [server.until("answer") for server in started] == [("delta", pack(1, 2), expected)] * 3
    # 0.0 -> 1.1 once for `new`; then both deltas once for the two that hold 0.0, the second once for `new`.
    assert sorted(reads(trainer.root).values()) == [2] * (2 * PARTS)
    assert sorted(path.stat().st_nlink for path in new.shared_dir.glob("*.bin")) == [2, 3]


def test_two_runs_side_by_side_share_nothing(tmp_path: Path, started: list[ServerProcess]) -> None:
    trainers = [Trainer(tmp_path, run) for run in ("one", "another")]
    for trainer in trainers:
        trainer.publish(1)
        started += [trainer.server(f"{trainer.run}-{i}") for i in range(2)]
    for server in started:
        server.begin("stage", 0)
    answers = [server.until("answer")[2] for server in started]
    assert answers == [fingerprint(trainers[0].weights)] * 2 + [fingerprint(trainers[1].weights)] * 2
    assert answers[0] != answers[2]
    counts = reads(tmp_path)
    assert (len(counts), set(counts.values())) == (2 * PARTS, {1})
    started[0].ask("leave")
    started[1].ask("leave")
    assert not started[0].shared_dir.exists()
    assert shared_files(started[2]) != []


def test_what_a_crash_of_all_left_behind_is_gone_with_the_next_start(
    trainer: Trainer, started: list[ServerProcess]
) -> None:
    trainer.publish(1)
    first, second = trainer.server("first"), trainer.server("second", holds_at=2)
    started += [first, second]
    first.ask("stage", 0)
    trainer.publish(2)
    second.begin("stage", pack(1, 1))
    second.until("held")
    for server in started:
        server.kill()
    assert len([name for name in shared_files(first) if ".bin" in name]) == 2
    again = trainer.server("first")
    started.append(again)
    assert again.ask("stage", 0)[2] == fingerprint(trainer.weights)
    (kept,) = [name for name in shared_files(first) if name.endswith(".bin")]
    assert kept.startswith(f"{pack(1, 2)}-")
    assert not [name for name in shared_files(first) if name.startswith(".")]


@pytest.mark.parametrize("way", ["a file in its place", "open to others", "another file system"])
def test_where_nothing_can_be_shared_each_server_brings_its_own_and_says_so(
    trainer: Trainer, started: list[ServerProcess], way: str, tmp_path: Path
) -> None:
    trainer.publish(1)
    stages = tmp_path / "shm"
    stages.mkdir()
    shared = stages / "run-shared"
    if way == "a file in its place":
        shared.write_bytes(b"")
    elif way == "open to others":
        shared.mkdir(mode=0o777)
        shared.chmod(0o777)
    elif not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system")
    else:
        shared.symlink_to("/dev/shm")
    started += [trainer.server(f"s{i}") for i in range(2)]
    for server in started:
        server.begin("stage", 0)
    for server in started:
        assert "brings its weights alone from here on" in server.until("alone")
        assert server.until("answer") == ("delta", pack(1, 1), fingerprint(trainer.weights))
    assert set(reads(trainer.root).values()) == {2}


def test_a_file_that_an_engine_refused_is_not_given_to_another_server(
    trainer: Trainer, started: list[ServerProcess]
) -> None:
    """Memory flipped a bit of the shared file after it was checked: who comes later gets a new one."""
    trainer.publish(1)
    first, second = trainer.server("first"), trainer.server("second")
    started += [first, second]
    first.ask("stage", 0)
    (shared,) = first.shared_dir.glob("*.bin")
    with shared.open("r+b") as stream:
        stream.seek(20)
        byte = stream.read(1)[0]
        stream.seek(20)
        stream.write(bytes([byte ^ 4]))
    first.ask("need")  # what its host says when the loader answers that the digest is another
    assert second.ask("stage", 0)[2] == fingerprint(trainer.weights)
    assert set(reads(trainer.root).values()) == {2}


def test_a_shared_file_that_was_cut_is_brought_again(trainer: Trainer, started: list[ServerProcess]) -> None:
    trainer.publish(1)
    first, second = trainer.server("first"), trainer.server("second")
    started += [first, second]
    first.ask("stage", 0)
    (shared,) = first.shared_dir.glob("*.bin")
    os.truncate(shared, shared.stat().st_size - 1)
    assert second.ask("stage", 0)[2] == fingerprint(trainer.weights)
    assert set(reads(trainer.root).values()) == {2}
