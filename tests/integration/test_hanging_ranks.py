"""The trainer's supervisor and two ranks that are real processes, of which one hangs: it is ended in time, and the run
goes on, or is over if all is saved."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cluster import LocalCluster, pulse
from asyncrl.cluster import local as module
from asyncrl.config import ClusterConfig, Config, ParallelConfig, RunConfig, TrainerConfig
from asyncrl.placement import Placement
from asyncrl.run import train
from asyncrl.run.parting import WAITING
from asyncrl.run.train import Supervisor
from buffer import BufferConfig, ReplayBuffer
from tests.support.left_behind import left_of

HANG_S, LONG_S = 3.0, 60.0
BEGIN = f"""
import os, runpy, signal
give_pulse = runpy.run_path({pulse.__file__!r})["give_pulse"]
give_pulse()
"""
"""Without asyncrl, whose import would take as long as the silence that is tried."""
ENDS = "pass"
SAVES = """open("outcome.json", "w").write('{"reason": "finished"}')"""
IS_STOPPED = "os.kill(os.getpid(), signal.SIGSTOP)"
STAYS = "signal.pause()"
IS_STOPPED_AT_FIRST = f"""
first = not os.path.exists("again")
open("again", "w").close()
if first:
    {IS_STOPPED}
{SAVES}
"""


class Watched:
    """Ranks that run these lines, watched until the run is over.

    Args:
        silence_s, parting_s: cluster.hang_timeout_s, for each of its two uses: which of them ends a rank is no race.

    Attributes:
        messages: what the user was told.
        started: the processes of all starts.
    """

    def __init__(
        self,
        directory: Path,
        rank_0: str,
        rank_1: str,
        monkeypatch: pytest.MonkeyPatch,
        *,
        silence_s: float = LONG_S,
        parting_s: float = LONG_S,
    ) -> None:
        self.messages: list[str] = []
        self.started: dict[int, str] = {}
        self._directory, self._lines = directory, (rank_0, rank_1)
        self._popen = subprocess.Popen
        monkeypatch.setattr(module.subprocess, "Popen", self._start)
        cluster = LocalCluster(directory, {}, stop_timeout_s=10.0, hang_timeout_s=silence_s)
        monkeypatch.setattr(train, "open_cluster", lambda *_: cluster)
        config = Config(
            run=RunConfig(name="toy", dir=directory),
            trainer=TrainerConfig(parallel=ParallelConfig(fsdp=2), device="cpu"),
            cluster=ClusterConfig(hang_timeout_s=parting_s),
        )
        self._supervisor = Supervisor(config, "", ReplayBuffer.in_memory("toy", BufferConfig()), held_out=0)
        try:
            asyncio.run(self._watch())
        finally:
            cluster.kill()

    def _start(self, command: list[str], *, env: dict[str, str], cwd: None, **options: Any) -> subprocess.Popen[bytes]:
        code = BEGIN + self._lines[int(env["RANK"])]
        process = self._popen([sys.executable, "-S", "-c", code], env=env, cwd=self._directory, **options)
        self.started[process.pid] = f"rank-{env['RANK']}"
        return process

    async def _watch(self) -> None:
        file, placement, stop = self._directory / "config.json", Placement(ranks=((), ()), servers=()), asyncio.Event()
        await self._supervisor._start_ranks(file, placement, stop, resume=False)
        await self._supervisor._watch(self, None, file, placement, stop)  # type: ignore[arg-type]  # a view of its own

    def message(self, text: str) -> None:
        """Of a view."""
        self.messages.append(text)

    def update(self, reports: object) -> None:
        """Of a view; nothing is shown."""


def test_a_rank_that_is_stopped_after_all_is_saved_is_ended_and_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(tmp_path, SAVES, IS_STOPPED, monkeypatch, silence_s=HANG_S)
    (told,) = run.messages
    assert "rank-1 (pid " in told
    assert "hangs: no sign of life for " in told
    assert "cluster.hang_timeout_s; it was killed" in told
    assert told.endswith("the run had ended before in good order, and lost nothing")
    assert len(run.started) == 2
    assert left_of(run.started) == {}


def test_a_rank_that_is_stopped_before_is_a_dead_one_and_all_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another one has ended without an error."""
    run = Watched(tmp_path, IS_STOPPED_AT_FIRST, ENDS, monkeypatch, silence_s=HANG_S)
    (told,) = run.messages
    assert "rank-0 (pid " in told
    assert "all ranks go on from the newest checkpoint (1 of 3 restarts)" in told
    assert len(run.started) == 4
    assert left_of(run.started) == {}


def test_a_rank_that_stays_with_signs_of_life_is_waited_for_by_name_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that never comes back from the close of its process group."""
    run = Watched(tmp_path, SAVES, STAYS, monkeypatch, parting_s=HANG_S)
    (told,) = run.messages
    assert told.startswith(f"{WAITING}: ")
    assert f">= deadline {HANG_S} s. rank-1 is still there; ended: rank-0, all is saved: yes; its log is " in told
    assert left_of(run.started) == {}
