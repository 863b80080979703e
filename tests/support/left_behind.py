"""What a run's commands leave running, and the wait for it to end."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from buffer.server_process import alive, stop

WITHIN_S = 10.0
REDIS = ("redis/server.conf", "buffer.reaper")


def processes_of(run_dir: Path, word: str = "") -> dict[int, str]:
    """Process id -> command line of whatever runs for a run, and has `word` in it: all that its commands start, at
    whatever remove, has the run's directory among its arguments or in its environment."""
    found = {}
    for pid, line in _all():
        with suppress(OSError):  # it has ended, or is another user's
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if word in line and (str(run_dir) in line or str(run_dir).encode() in environment):
                found[pid] = line
    return found


def descendants_of(pid: int) -> dict[int, str]:
    """Process id -> command line of what a process has started, at whatever remove."""
    parents = {}
    for child, _ in _all():
        with suppress(OSError):
            # The name in brackets may hold anything; the state and the parent come after it.
            parents[child] = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    found, lines = {pid}, dict(_all())
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: lines.get(child, "") for child in found - {pid}}


def port_of_server(processes: dict[int, str]) -> int:
    """The port of the local server among them."""
    commands = (line.split() for line in processes.values())
    (words,) = (words for words in commands if words[1:3] == ["-m", "asyncrl.inference.local_server"])
    return int(words[words.index("--port") + 1])


def left_of(processes: dict[int, str], within_s: float = WITHIN_S) -> dict[int, str]:
    """Those that have not ended `within_s` seconds from now."""
    deadline_s = time.monotonic() + within_s
    return {pid: line for pid, line in processes.items() if not _ended(pid, deadline_s - time.monotonic())}


def clear(run_dir: Path, *, was_killed: bool) -> None:
    """The end of a test: nothing of its run is left. Redis outlives a command that was killed, and is stopped.

    Args:
        was_killed: whether the last command of the run was, so that nobody stopped Redis.
    """
    there = processes_of(run_dir)
    others = {pid: line for pid, line in there.items() if not any(word in line for word in REDIS)}
    left = left_of(others if was_killed else there)
    if alive(run_dir / "redis"):
        stop(run_dir / "redis")
    assert left == {}, "what a command has started ends with it"
    assert left_of(processes_of(run_dir)) == {}


def _all() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            yield int(entry.name), line.replace(b"\0", b" ").decode(errors="replace").strip()


def _ended(pid: int, within_s: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], max(within_s, 0.0))[0])
    finally:
        os.close(handle)
