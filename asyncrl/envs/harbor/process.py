"""Run a program to its end or its deadline, and keep the beginning and the end of what it writes."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from asyncrl.envs.harbor.workspace import MAX_OUTPUT_BYTES, Ran, WorkspaceError, shown

_CHUNK = 1 << 16
REAP_S = 5.0  # a killed process is gone within this unless the kernel is busy


class Output:
    """Bytes as they come: the first and the last half of `limit` are kept."""

    def __init__(self, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._half = limit // 2
        self._head, self._tail, self._left_out = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        """Take some more."""
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if (excess := len(self._tail) - self._half) > 0:
            del self._tail[:excess]
            self._left_out += excess

    def text(self) -> str:
        """What was kept."""
        if not self._left_out:
            return shown(bytes(self._head + self._tail))
        # Both halves are full, so that the cut is where they meet.
        return shown(bytes(self._head + self._tail), self._left_out)


async def run_program(arguments: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> Ran:
    """Run it with both streams joined and nothing to read, in a process group of its own.

    Past the deadline, and when the caller is cancelled, the group is killed. What it leaves running when it ends by
    itself is the business of the program, which has namespaces or a container for that.
    Raises:
        WorkspaceError: it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=dict(env), start_new_session=True
        )
    except OSError as error:
        raise WorkspaceError(f"{arguments[0]} cannot be started: {error.strerror or error}") from error
    output = Output()
    try:
        async with asyncio.timeout(timeout_s):
            await _read_all(process, output)
            code = await process.wait()
    except TimeoutError:
        return Ran(output.text(), None)
    finally:
        await _end(process)
    return Ran(output.text(), code)


async def _read_all(process: Process, output: Output) -> None:
    assert process.stdout is not None
    while chunk := await process.stdout.read(_CHUNK):
        output.add(chunk)


async def _end(process: Process) -> None:
    """Kill it and its group if it still runs. Its own end is awaited, so that no zombie stays."""
    if process.returncode is not None:
        return  # its number may be another's by now
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            await asyncio.shield(process.wait())
