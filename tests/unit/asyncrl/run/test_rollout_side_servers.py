"""Servers that a run can do without, those that join and leave it, and whose restarts count."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.cluster import LocalCluster
from asyncrl.config import Config, InferenceConfig, RolloutConfig
from asyncrl.errors import ProcessDied
from asyncrl.placement import Placement
from asyncrl.run.adoptions import Adoptions
from asyncrl.run.rollout_side import RolloutSide
from tests.support.event_loop import in_event_loop
from weightsync.log.directory import DirectoryLog
from weightsync.orders import Adoption

PROGRAM = """
import os, pathlib, signal, sys
code = int(sys.argv[1])
log = pathlib.Path(os.environ["ASYNCRL_LOG"])
if code:
    log.with_suffix(".error.json").write_text('{"message": "no luck", "exit_code": %d}' % code)
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
while True:
    signal.pause()
"""


class Processes:
    """Children that end with the code that the test gave to their name, or run until they are stopped."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.commands = directory, list[list[str]]()
        self.codes: dict[str, int] = {}
        real = subprocess.Popen

        def popen(command: list[str], **options: object) -> object:
            self.commands.append(command)
            log = Path(options["env"]["ASYNCRL_LOG"])  # type: ignore[index]  # a mapping
            code = str(self.codes.get(log.stem, 0))
            return real([sys.executable, "-S", "-c", PROGRAM, code], **options)  # type: ignore[call-overload]  # passed through

        monkeypatch.setattr("asyncrl.cluster.local.subprocess.Popen", popen)
        self.cluster = LocalCluster(directory, {}, stop_timeout_s=60.0)

    def side(self, *, servers: int, max_restarts: int = 2, place: int = 0) -> RolloutSide:
        config = Config(
            inference=InferenceConfig(servers=servers, max_restarts=max_restarts), rollout=RolloutConfig(workers=0)
        )
        placement = Placement(ranks=(), servers=((),) * servers)
        return RolloutSide(config, self.cluster, self.directory / "config.json", placement, place=place)

    async def tended(self, side: RolloutSide, count: int) -> list[str]:
        """Events until there were so many."""
        happened: list[str] = []

        def tend() -> bool | None:
            happened.extend(side.tend())
            return len(happened) >= count or None

        await waits.until("test", tend, why=lambda: str(happened), deadline_s=30.0, recheck_s=0.02)
        return happened


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch)


@pytest.mark.parametrize(("code", "num_events"), [(4, 1), (1, 3)])
@in_event_loop
async def test_a_server_that_cannot_work_costs_a_run_with_others_that_server_alone(
    code: int, num_events: int, processes: Processes
) -> None:
    processes.codes["server-0"] = code
    side = processes.side(servers=2)
    side.start()
    happened = await processes.tended(side, num_events)
    assert "no luck; the run goes on with 1 servers" in happened[-1]
    assert side.tend() == []
    await side.stop()


@pytest.mark.parametrize(("code", "servers"), [(4, 1), (2, 2), (3, 2)])
@in_event_loop
async def test_without_another_server_or_for_a_wrong_setting_the_run_ends(
    code: int, servers: int, processes: Processes
) -> None:
    processes.codes["server-0"] = code
    side = processes.side(servers=servers)
    side.start()
    with pytest.raises(ProcessDied, match="no luck") as ended:
        await processes.tended(side, 1)
    assert ended.value.exit_code == code
    await side.stop()


@in_event_loop
async def test_each_child_has_restarts_of_its_own(processes: Processes) -> None:
    processes.codes |= {"server-0": 1, "server-1": 1}
    side = processes.side(servers=3, max_restarts=1)
    side.start()
    happened = await processes.tended(side, 4)
    assert sum("started again (1 of 1)" in event for event in happened) == 2
    assert sum("the run goes on with" in event for event in happened) == 2
    await side.stop()


@in_event_loop
async def test_added_servers_get_a_host_on_their_machine_and_lose_it_when_they_are_removed(
    processes: Processes, tmp_path: Path
) -> None:
    log = DirectoryLog(tmp_path / "log", "run")
    side = processes.side(servers=1)
    adoptions = Adoptions(log, side, machine="here")
    side.start()
    assert await adoptions.tend() == []
    log.put_adoption("added", Adoption("http://127.0.0.1:1", "here"))
    log.put_adoption("other", Adoption("http://127.0.0.1:2", "there"))
    (event,) = await adoptions.tend()
    assert event.startswith("added at http://127.0.0.1:1 was added")
    assert await adoptions.tend() == []
    assert processes.commands[-1][-4:] == ["--name", "added", "--url", "http://127.0.0.1:1"]
    assert len(processes.cluster.children) == 2
    log.put_adoption("added", Adoption("http://127.0.0.1:3", "here"))
    assert len(await adoptions.tend()) == 2, "at another address it is another server"
    log.put_adoption("added", None)
    (event,) = await adoptions.tend()
    assert "its host has ended" in event
    assert len(processes.cluster.children) == 1
    await side.stop()
    log.close()


@in_event_loop
async def test_the_second_serve_rollout_of_a_machine_tells_its_hosts(processes: Processes) -> None:
    side = processes.side(servers=1, place=1)
    side.start()
    assert processes.commands[-1][-4:] == ["--index", "0", "--place", "1"]
    await side.stop()
