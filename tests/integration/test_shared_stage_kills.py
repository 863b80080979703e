"""Servers that share what they stage are killed anywhere, many times: nobody gets a byte that is not the step's."""

import random
from collections import Counter
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.support.forkserver import forkserver
from tests.support.stage_worker import BUCKETS, work

STEPS, KILLS = 6, 8
NAMES = ("a", "b", "c")


class Workers:
    """The processes, by name; each is started anew when it is killed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._context = forkserver()
        self.running: dict[str, tuple[ForkServerProcess, Connection]] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(self._root, name, STEPS, theirs), daemon=True)
        process.start()
        theirs.close()
        self.running[name] = (process, ours)

    def kill(self, name: str) -> None:
        process, pipe = self.running.pop(name)
        process.kill()
        process.join(30.0)
        pipe.close()

    def next_word(self) -> tuple[str, str, int]:
        """Who says something first, and what."""
        ready = wait([pipe for _, pipe in self.running.values()], 60.0)
        assert ready, "nobody says anything for a minute: a lock is held by the dead"
        name = next(name for name, (_, pipe) in self.running.items() if pipe is ready[0])
        try:
            what, step = self.running[name][1].recv()
        except EOFError:
            raise AssertionError(f"{name} ended by itself: see its traceback") from None
        return name, what, step


@pytest.mark.parametrize("seed", range(3))
def test_killed_anywhere_they_end_with_every_step_and_leave_nothing_half_done(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    workers = Workers(tmp_path)
    kills, done, written = 0, set[str](), Counter[int]()
    killed_while = Counter[str]()
    while len(done) < len(NAMES):
        name, what, step = workers.next_word()
        if what == "done":
            done.add(name)
            continue
        written[step] += what == "writes"
        if kills < KILLS and rng.random() < 0.25:
            kills += 1
            killed_while[what] += 1
            workers.kill(name)
            workers.start(name)
            continue
        workers.running[name][1].send("go on")
    assert kills == KILLS, f"seed {seed}: {killed_while}"
    # Everybody's last file is one file, and whatever the dead had begun was swept.
    (kept,) = (tmp_path / "shared").glob("*.bin")
    assert kept.name == f"{STEPS - 1}-abc.bin"
    assert kept.stat().st_nlink == 1 + len(NAMES)
    assert list((tmp_path / "shared").glob(".*")) == []
    # Without a death a step is written once; each death costs at most the steps that its server goes through again.
    assert all(written[step] >= BUCKETS for step in range(STEPS))
    for name in NAMES:
        workers.running[name][1].send("go on")
        workers.running[name][0].join(30.0)
    assert not (tmp_path / "shared").exists()
