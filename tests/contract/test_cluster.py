"""What every cluster promises about the processes that it starts: here, or by a keeper that may be anywhere."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.cluster import Child, Cluster, ClusterSetup, Failure, LocalCluster, Seat, Wanted
from asyncrl.cluster import local as module
from asyncrl.cluster.remote import RemoteCluster
from asyncrl.config import ClusterConfig
from tests.support.fake_machines import FakeMachines

SEAT = Seat("workers", 0)
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
POLITE = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"


@pytest.fixture(autouse=True)
def code_for_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children run the code in their last argument in place of a role."""
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        return real([sys.executable, "-c", command[-1]], **options)  # type: ignore[call-overload]  # options pass through

    monkeypatch.setattr(module.subprocess, "Popen", popen)


@pytest.fixture(params=["local", "remote"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    env, config = {"FROM_CLUSTER": "1"}, ClusterConfig(stop_timeout_s=20.0)
    opened: Cluster
    if request.param == "local":
        opened = LocalCluster(tmp_path, env, stop_timeout_s=config.stop_timeout_s)
    else:
        opened = RemoteCluster(ClusterSetup(run="demo", log_dir=tmp_path, env=env, config=config), FakeMachines())
    placement = asyncio.run(opened.place(Wanted(ranks=1, servers=2, workers=1)))
    assert (placement.ranks, placement.servers) == (((),), ((), ()))
    yield opened
    opened.kill()


def ended(child: Child) -> int | None:
    assert asyncio.run(child.ended(60.0, "test waits for a child"))
    return child.exit_code()


def until_up(child: Child) -> None:
    while not child.log.exists() or b"up" not in child.log.read_bytes():
        os.sched_yield()


def test_a_child_has_its_environment_and_its_output_is_in_its_log(cluster: Cluster, tmp_path: Path) -> None:
    code = "import os; print(os.environ['FROM_CLUSTER'], os.environ['RANK'], repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    child = cluster.start("role", "rank-0", [code], {"RANK": "0"}, seat=Seat("ranks", 0))
    assert ended(child) == 0
    assert child.failure() is None
    assert child.log == tmp_path / "rank-0.log"
    assert child.log.read_text().splitlines()[-1] == "1 0 ''"


def test_a_child_that_leaves_its_reason_is_quoted(cluster: Cluster) -> None:
    code = "from asyncrl.cluster import leave_reason as l; l('disk full', 5); raise SystemExit(5)"
    child = cluster.start("role", "worker-0", [code], seat=SEAT)
    assert ended(child) == 5
    assert child.failure() == Failure("worker-0", 5, "disk full")


def test_an_old_reason_is_not_taken_for_a_new_one(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "worker-0.error.json").write_text('{"message": "left by an earlier run", "exit_code": 1}')
    child = cluster.start("role", "worker-0", ["raise SystemExit(9)"], seat=SEAT)
    assert ended(child) == 9
    assert "earlier run" not in str(child.failure())


def test_a_child_that_is_killed_is_named_with_its_signal_and_log(cluster: Cluster) -> None:
    """B186: by name and signal, at the next look."""
    child = cluster.start("role", "worker-0", ["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], seat=SEAT)
    assert ended(child) == -signal.SIGKILL
    failure = child.failure()
    assert failure is not None
    assert "SIGKILL" in failure.message
    assert "worker-0.log" in failure.message


def test_stop_asks_first_and_kills_what_does_not_listen(cluster: Cluster) -> None:
    deaf = cluster.start("role", "server-0", [DEAF], seat=Seat("servers", 0))
    polite = cluster.start("role", "server-1", [POLITE], seat=Seat("servers", 1))
    for child in (deaf, polite):
        until_up(child)
    asyncio.run(cluster.stop(timeout_s=1.0))
    assert deaf.exit_code() == -signal.SIGKILL
    assert polite.exit_code() == 0
    assert cluster.children == []


def test_a_child_that_ended_is_started_again_in_its_seat(cluster: Cluster) -> None:
    first = cluster.start("role", "worker-0", ["raise SystemExit(1)"], seat=SEAT)
    assert ended(first) == 1
    cluster.forget(first)
    again = cluster.start("role", "worker-0", ["pass"], seat=SEAT)
    assert cluster.children == [again]
    assert ended(again) == 0


def test_kill_ends_everything_at_once(cluster: Cluster) -> None:
    child = cluster.start("role", "worker-0", [DEAF], seat=SEAT)
    until_up(child)
    cluster.kill()
    assert ended(child) == -signal.SIGKILL


def test_ranks_meet_at_an_address_and_a_free_port(cluster: Cluster) -> None:
    address, port = asyncio.run(cluster.meeting_point(Seat("ranks", 0)))
    assert (address, cluster.machines()) == ("127.0.0.1", ("127.0.0.1",))
    assert 0 < port < 1 << 16
