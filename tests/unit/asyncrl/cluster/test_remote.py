"""Processes on other machines: they are placed, started, watched and started again, whatever becomes of the machine."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.cluster import ClusterSetup, Seat, Wanted
from asyncrl.cluster import local as module
from asyncrl.cluster.head import HeadWatch
from asyncrl.cluster.remote import RemoteCluster, passed_on
from asyncrl.cluster.remote_child import RemoteChild
from asyncrl.config import ClusterConfig
from asyncrl.errors import PreflightError, WaitTimeout
from tests.support.fake_machines import FakeMachines

RANK, WORKER = Seat("ranks", 0), Seat("workers", 0)
WAITS = "import signal; print('up', flush=True); signal.pause()"
WANTED = Wanted(ranks=2, servers=1, workers=1)


@pytest.fixture(autouse=True)
def code_for_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children run the code in their last argument in place of a role."""
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        return real([sys.executable, "-S", "-c", command[-1]], **options)  # type: ignore[call-overload]  # passed on

    monkeypatch.setattr(module.subprocess, "Popen", popen)


@pytest.fixture
def machines() -> Iterator[FakeMachines]:
    found = FakeMachines()
    yield found
    found.close()


def cluster_on(machines: FakeMachines, log_dir: Path, wanted: Wanted = WANTED, **config: object) -> RemoteCluster:
    """A cluster with a place for everything."""
    settings = ClusterConfig(backend="ray", stop_timeout_s=20.0, **config)  # type: ignore[arg-type]  # keys by name
    setup = ClusterSetup(run="demo", log_dir=log_dir, env={"URL": "redis://secret"}, config=settings)
    cluster = RemoteCluster(setup, machines)
    asyncio.run(cluster.place(wanted))
    return cluster


def ended(child: RemoteChild) -> int | None:
    assert asyncio.run(child.ended(60.0, "test waits for a child"))
    return child.exit_code()


def test_a_child_ends_with_its_code_and_says_in_its_log_where_it_was(machines: FakeMachines, tmp_path: Path) -> None:
    cluster = cluster_on(machines, tmp_path)
    child = cluster.start("role", "rank-0", ["print('played', flush=True)"], seat=RANK)
    assert ended(child) == 0
    assert child.failure() is None
    where, what = child.log.read_text().splitlines()
    assert where.startswith("asyncrl: rank-0 on ")
    assert what == "played"


def test_a_child_whose_machine_died_is_lost_and_its_successor_has_another_keeper(
    machines: FakeMachines, tmp_path: Path
) -> None:
    """B186: and so is the death of a whole machine."""
    cluster = cluster_on(machines, tmp_path)
    child = cluster.start("role", "rank-0", [WAITS], seat=RANK)
    assert child.exit_code() is None
    machines.lose(machines.keepers[0])
    assert child.exit_code() == -signal.SIGKILL
    failure = child.failure()
    assert failure is not None
    assert "rank-0 is lost" in failure.message
    assert "node 10.0.0.7 has died" in failure.message
    cluster.forget(child)
    again = cluster.start("role", "rank-0", [WAITS], seat=RANK)
    assert again.exit_code() is None
    assert [keeper.place for keeper in machines.keepers] == [("ranks", 0), ("ranks", 0)]
    machines.keepers[1].keeper.send("rank-0", signal.SIGKILL)
    assert ended(again) == -signal.SIGKILL
    assert cluster.start("role", "rank-0", [WAITS], seat=RANK).exit_code() is None
    assert len(machines.keepers) == 2, "a process that died alone is started by the keeper that is there"


def test_a_machine_that_never_answers_again_counts_as_dead(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B186: a look has a deadline."""
    now = [1000.0]
    monkeypatch.setattr("asyncrl.cluster.remote_child.time.monotonic", lambda: now[0])
    cluster = cluster_on(machines, tmp_path, silence_timeout_s=30.0)
    child = cluster.start("role", "worker-0", [WAITS], seat=WORKER)
    assert child.exit_code() is None
    machines.is_silent = True
    now[0] += 29.0
    assert child.exit_code() is None
    now[0] += 1.0
    assert child.exit_code() == -signal.SIGKILL
    assert "has not answered for 30 s" in str(child.failure())


def test_a_keeper_that_has_lost_the_head_ends_what_it_started_and_what_it_was_about_to_start(
    machines: FakeMachines, tmp_path: Path
) -> None:
    cluster = cluster_on(machines, tmp_path)
    child = cluster.start("role", "rank-0", [WAITS], seat=RANK)
    assert child.exit_code() is None
    HeadWatch("head:1", 0.0, look_s=0.0, reach=lambda _: "gone", lost=machines.keepers[0].keeper.end)
    assert ended(child) == -signal.SIGKILL
    assert ended(cluster.start("role", "rank-0", [WAITS], seat=RANK)) == -signal.SIGKILL


def test_a_process_that_hangs_is_ended_where_it_is(machines: FakeMachines, tmp_path: Path) -> None:
    cluster = cluster_on(machines, tmp_path, hang_timeout_s=0.5)
    child = cluster.start("role", "rank-0", [WAITS], seat=RANK)
    assert ended(child) == -signal.SIGKILL
    assert "rank-0 (pid " in str(child.failure())
    assert "cluster.hang_timeout_s; it was killed" in str(child.failure())


def test_a_process_that_finds_no_room_is_a_wait_with_a_deadline(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("asyncrl.cluster.remote_child.time.monotonic", lambda: now[0])
    cluster = cluster_on(machines, tmp_path, placement_timeout_s=600.0)
    machines.is_silent = True
    child = cluster.start("role", "worker-0", [WAITS], seat=WORKER)
    now[0] += 599.0
    assert child.exit_code() is None
    now[0] += 1.0
    assert child.exit_code() == WaitTimeout.exit_code
    assert "worker-0 was not started" in str(child.failure())


def test_a_look_that_was_lost_on_its_way_is_made_again(machines: FakeMachines, tmp_path: Path) -> None:
    cluster = cluster_on(machines, tmp_path)
    child = cluster.start("role", "worker-0", [WAITS], seat=WORKER)
    assert child.exit_code() is None
    machines.loses_next_call = True
    machines.keepers[0].keeper.send("worker-0", signal.SIGTERM)
    assert ended(child) == -signal.SIGTERM


def test_an_order_that_did_not_arrive_is_an_end_that_a_restart_may_mend(machines: FakeMachines, tmp_path: Path) -> None:
    cluster = cluster_on(machines, tmp_path)
    machines.loses_next_call = True
    child = cluster.start("role", "worker-0", ["pass"], seat=WORKER)
    assert ended(child) == 1
    assert "its order did not arrive" in str(child.failure())


def test_no_room_at_the_start_is_an_error_that_says_what_is_wanted_and_free(tmp_path: Path) -> None:
    machines = FakeMachines()
    machines.why = "no room yet for 2 x {CPU: 1} for ranks; free on 1 nodes: 0 of 1 CPU"
    with pytest.raises(WaitTimeout, match=r"room for its processes.*2 x \{CPU: 1\} for ranks.*trainer\.parallel"):
        cluster_on(machines, tmp_path, placement_timeout_s=0.001)


def test_a_machine_that_does_not_see_the_run_directory_is_refused(machines: FakeMachines, tmp_path: Path) -> None:
    cluster = cluster_on(machines, tmp_path)
    (proof,) = tmp_path.glob(".shared-*")
    proof.write_text("of another directory")
    child = cluster.start("role", "rank-0", [WAITS], seat=RANK)
    assert ended(child) == PreflightError.exit_code
    assert "does not see the run directory" in str(child.failure())
    assert "run.dir" in str(child.failure())


def test_the_declared_environment_is_passed_on_and_nothing_else(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B184, B185: HF_HOME of the command reaches a child elsewhere; a token, and a variable of two lines, do not."""
    for name, value in (("HF_HOME", "/models"), ("MY_TOKEN", "geheim"), ("TWO_LINES", "a\nb"), ("NCCL_DEBUG", "INFO")):
        monkeypatch.setenv(name, value)
    cluster = cluster_on(machines, tmp_path)
    cluster.start("role", "rank-0", ["pass"], {"RANK": "0"}, seat=RANK)
    (order,) = machines.keepers[0].orders
    assert order.env["HF_HOME"] == "/models"
    assert order.env["NCCL_DEBUG"] == "INFO"
    assert (order.env["URL"], order.env["RANK"]) == ("redis://secret", "0")
    assert not {"MY_TOKEN", "TWO_LINES", "PATH", "HOME"} & set(order.env)
    assert "secret" not in repr(order), "Redis's password is in no argument, and shown nowhere"
    assert "secret" not in " ".join(order.arguments)


def test_the_token_of_the_cluster_stays_with_the_keeper(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B185: a reward function in a worker has no use for it."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "geheim")
    cluster = cluster_on(machines, tmp_path)
    child = cluster.start("role", "worker-0", ["import os; print('geheim' in os.environ.values())"], seat=WORKER)
    assert ended(child) == 0
    assert child.log.read_text().splitlines()[1] == "False"


def test_patterns_of_names_are_matched_whole() -> None:
    assert passed_on({"HF_HOME": "a", "MY_HF_HOME": "b", "HF_HOME2": "c"}, ["HF_HOME"]) == {"HF_HOME": "a"}
    assert passed_on({"WANDB_MODE": "a", "wandb_x": "b"}, ["WANDB_*"]) == {"WANDB_MODE": "a"}


def test_devices_are_those_that_the_cluster_gave_the_bundle(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")  # as the cluster sets it for the keeper of a bundle
    machines = FakeMachines(devices=8)
    cluster = cluster_on(machines, tmp_path, Wanted(ranks=2, servers=1, tp=2, workers=1, shares_devices=True))
    says = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    seats = {"rank-0": RANK, "rank-1": Seat("ranks", 1), "server-0": Seat("servers", 0), "worker-0": WORKER}
    children = [cluster.start("role", name, [says], seat=seat) for name, seat in seats.items()]
    assert [ended(child) for child in children] == [0, 0, 0, 0]
    assert [child.log.read_text().splitlines()[1] for child in children] == ["'4'", "'6'", "'4,6'", "''"]
    assert len(machines.keepers) == 2, "one for the bundle of ranks and server, one for the worker"


def test_fewer_devices_than_reserved_is_an_error_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    cluster = cluster_on(FakeMachines(devices=8), tmp_path, Wanted(servers=1, tp=2))
    child = cluster.start("role", "server-0", ["pass"], seat=Seat("servers", 0))
    assert ended(child) == PreflightError.exit_code
    assert "needs 2 devices" in str(child.failure())


def test_ranks_meet_at_a_free_port_where_rank_0_is_even_if_its_keeper_died(
    machines: FakeMachines, tmp_path: Path
) -> None:
    cluster = cluster_on(machines, tmp_path)
    address, port = asyncio.run(cluster.meeting_point(RANK))
    assert address == "127.0.0.1"
    assert port > 0
    machines.lose(machines.keepers[0])
    assert asyncio.run(cluster.meeting_point(RANK))[1] > 0
    assert [keeper.is_lost for keeper in machines.keepers] == [True, False]


def test_kill_closes_the_machines_and_leaves_no_proof(machines: FakeMachines, tmp_path: Path) -> None:
    cluster = cluster_on(machines, tmp_path)
    cluster.kill()
    assert machines.is_closed
    assert not list(tmp_path.glob(".shared-*"))
