"""The order in which the rollout side is stopped, who is told to hurry, and what a run can do without."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.cluster import LocalCluster
from asyncrl.config import Config, InferenceConfig, ParallelConfig, ScheduleConfig, TrainerConfig
from asyncrl.errors import PreflightError, ProcessDied
from asyncrl.placement import Placement
from asyncrl.run.rollout_side import RolloutSide, num_servers_beside_trainer
from tests.support.event_loop import in_event_loop

PROGRAM = """
import signal, sys

def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR1 or sys.argv[1] == "server-host":
        sys.exit(0)

signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGUSR1, handle)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RolloutSide:
    """A host and a worker; the worker leaves only when it is told to hurry."""
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        role = command[command.index("asyncrl.run") + 1]
        return real([sys.executable, "-c", PROGRAM, role], **options)  # type: ignore[call-overload]  # passed through

    monkeypatch.setattr("asyncrl.cluster.local.subprocess.Popen", popen)
    processes = LocalCluster(tmp_path, {}, stop_timeout_s=60.0)
    return RolloutSide(Config(), processes, tmp_path / "config.json", Placement(ranks=(), servers=((),)))


async def said(log: Path, words: list[str]) -> None:
    """Wait until a child has said this."""
    await waits.until(
        "test", lambda: log.read_text().split() == words or None, why=log.read_text, deadline_s=30.0, recheck_s=0.02
    )


@in_event_loop
async def test_a_notice_that_comes_during_the_stop_reaches_the_workers_and_hosts_go_last(
    side: RolloutSide, tmp_path: Path
) -> None:
    worker, host = tmp_path / "worker-0.log", tmp_path / "server-0.log"
    side.start()
    for log in (worker, host):
        await said(log, ["up"])
    hurry = asyncio.Event()
    stopping = asyncio.create_task(side.stop(hurry))
    await said(worker, ["up", "SIGTERM"])
    assert host.read_text().split() == ["up"], "servers still answer while workers park"
    hurry.set()
    assert 0 < await stopping < 60
    assert worker.read_text().split() == ["up", "SIGTERM", "SIGUSR1"]
    assert host.read_text().split() == ["up", "SIGTERM"]


@in_event_loop
async def test_a_notice_that_came_before_the_stop_is_passed_on_with_it(side: RolloutSide, tmp_path: Path) -> None:
    side.start()
    for name in ("worker-0", "server-0"):
        await said(tmp_path / f"{name}.log", ["up"])
    hurry = asyncio.Event()
    hurry.set()
    await side.stop(hurry)
    assert "SIGUSR1" in (tmp_path / "worker-0.log").read_text()


ENDS = """
import os, pathlib, sys
log = pathlib.Path(os.environ["ASYNCRL_LOG"])
log.with_suffix(".error.json").write_text('{"message": "no luck", "exit_code": %d}' % int(sys.argv[1]))
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("code", "restarts", "is_fatal"), [(1, 2, False), (4, 0, False), (3, 0, True)])
@in_event_loop
async def test_a_lent_server_that_cannot_work_is_left_out_and_a_wrong_setting_is_an_error(
    code: int, restarts: int, is_fatal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, commands = subprocess.Popen, []

    def popen(command: list[str], **options: object) -> object:
        commands.append(command)
        return real([sys.executable, "-c", ENDS, str(code)], **options)  # type: ignore[call-overload]  # passed through

    monkeypatch.setattr("asyncrl.cluster.local.subprocess.Popen", popen)
    config = Config(inference=InferenceConfig(max_restarts=2))
    processes = LocalCluster(tmp_path, {}, stop_timeout_s=60.0)
    side = RolloutSide(
        config, processes, tmp_path / "config.json", Placement(ranks=((),), servers=((),)), only_lent=True
    )
    side.start()
    happened: list[str] = []

    async def tended() -> None:
        while processes.children:
            for child in processes.children:
                await child.ended(30.0, "test")
            happened.extend(side.tend())

    if is_fatal:
        with pytest.raises(ProcessDied, match="no luck") as raised:
            await tended()
        assert raised.value.exit_code == code
        return
    await tended()
    assert [event.partition(";")[2].split()[0] for event in happened] == ["started"] * restarts + ["its"]
    assert "not lent any more" in happened[-1]
    assert len(commands) == 1 + restarts
    assert all("--lent" in command and "server-host" in command for command in commands)
    await side.stop()


def test_a_trainer_lends_one_server_for_each_group_of_devices_that_one_takes() -> None:
    def beside(**keys: object) -> int:
        sections = {
            "schedule": ScheduleConfig(lend_trainer_gpus=True),
            "trainer": TrainerConfig(parallel=ParallelConfig(fsdp=5)),
            "inference": InferenceConfig(tp=2, servers=3),
        }
        return num_servers_beside_trainer(Config(**{**sections, **keys}), num_teachers=1)  # type: ignore[arg-type]  # sections by name

    assert beside() == 2
    assert beside(mode="sync") == 4, "where devices are shared all servers are beside the trainer"
    assert beside(schedule=ScheduleConfig()) == 0
    with pytest.raises(PreflightError, match=r"inference\.tp = 8"):
        beside(inference=InferenceConfig(tp=8))
