"""What whole runs need: the tiny model and its data, and the two commands as processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl import cli
from tests.support.commands import CONFIG, ROOT, Command
from tests.support.left_behind import clear

SMALL = (
    "schedule.groups_per_step=8",
    "rollout.n=8",
    "eval.n=1",
    "metrics.sinks=[]",
    "buffer.claim_s=3",
    "buffer.renew_every_s=1",
    "cluster.stop_timeout_s=10",
)
Start = Callable[..., Command]


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model and data of configs/tiny_cpu.yaml, made where the file says, if they are missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert cli.main(["starter", str(CONFIG)]) == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command on the run of this test; whatever still runs at the end is killed, and nothing may be left."""
    started: list[Command] = []
    directories: set[Path] = set()

    def run(*arguments: str, run_dir: Path | None = None) -> Command:
        directory = run_dir or tmp_path / "run"
        directory.mkdir(parents=True, exist_ok=True)
        directories.add(directory)
        name, *rest = arguments
        command = Command(
            [name, str(CONFIG), f"run.dir={directory}", f"run.name={directory.name}", *SMALL, *rest],
            directory / f"{name}-{len(started)}.out",
        )
        started.append(command)
        return command

    yield run
    was_running = [command for command in started if command.process.poll() is None]
    for command in started:
        command.close()
    for directory in directories:
        clear(directory, was_killed=bool(was_running))
