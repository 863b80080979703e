"""Nothing of a server outlives its host or the server itself, however those end, and its port is free again at once.

The server here is a shell, its child answers at the port, and that one's child has left session and group: none of them
asks the kernel to end it with its parent.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from asyncrl.inference import reaper
from asyncrl.inference.launcher import reserve_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the reaper is Linux's")

WITHIN_S = 10.0

ANSWERING = """
import os, signal, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
mine = os.getpid()
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    os.setsid()  # an orphan, in a session of its own, with the port
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        connection.sendall(f"{os.getppid()} {mine} {os.getpid()}\\n".encode())
        connection.close()
signal.pause()
"""

HOST = """
import asyncio, os, sys
from pathlib import Path
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.launcher import Command
from asyncrl.inference.server_process import ServerProcess

async def main(log, answering, port):
    argv = ("sh", "-c", '"$0" -I -S -c "$1" "$2" & wait', sys.executable, answering, port)
    process = ServerProcess("s", Command(argv, {}), Path(log), stop_timeout_s=5)
    async def ready():
        try:
            reader, _ = await asyncio.open_connection("127.0.0.1", int(port))
            line = (await reader.readline()).decode().strip()
        except OSError as error:
            raise ServerUnavailable(str(error)) from error
        if line.split()[0] != str(process.pid):
            raise ServerUnavailable("it is no orphan yet")
        print(line, flush=True)
    await process.start(ready, 20)
    order = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    ended = asyncio.create_task(process.ended())
    await asyncio.wait([order, ended], return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        print("ended", ended.result(), flush=True)
        os._exit(0)
    if order.result() == "raise\\n":
        raise RuntimeError("something is wrong with the host")
    await process.stop()
    print("stopped", process.exit_code, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Started:
    """A host, the reaper of its server, and handles of all that the server is."""

    host: subprocess.Popen[str]
    reaper: int
    server: int
    handles: dict[int, int]

    def left(self) -> list[int]:
        """Processes of the server that have not ended `WITHIN_S` from now."""
        return [pid for pid, handle in self.handles.items() if not select.select([handle], [], [], WITHIN_S)[0]]

    def order(self, text: str) -> None:
        """Tell the host what to do."""
        assert self.host.stdin is not None
        self.host.stdin.write(f"{text}\n")
        self.host.stdin.flush()

    def stop_and_kill_host(self) -> None:
        """A host that is killed while its server's group is stopped."""
        os.killpg(self.reaper, signal.SIGSTOP)
        self.host.kill()

    def said(self) -> str:
        """The host's next line."""
        assert self.host.stdout is not None
        return self.host.stdout.readline().strip()


@contextmanager
def started(tmp_path: Path, port: int) -> Iterator[Started]:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path / "s.log"), ANSWERING, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    one = Started(host, 0, 0, {})
    try:
        pids = [int(word) for word in one.said().split()]
        one.reaper, answering, _ = pids
        one.server = int(Path(f"/proc/{answering}/stat").read_text().rpartition(")")[2].split()[1])
        one.handles = {pid: os.pidfd_open(pid) for pid in (one.server, *pids)}
        yield one
    finally:
        for handle in one.handles.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        host.kill()
        host.communicate()


ENDS: dict[str, tuple[Callable[[Started], object], str | None]] = {
    "the host is killed": (lambda one: one.host.kill(), None),
    "the host is terminated": (lambda one: one.host.terminate(), None),
    "the host raises": (lambda one: one.order("raise"), None),
    "the host is killed while all of the server is stopped": (lambda one: one.stop_and_kill_host(), None),
    "the host stops the server": (lambda one: one.order("stop"), f"stopped {-signal.SIGTERM}"),
    "the server is killed": (lambda one: os.kill(one.server, signal.SIGKILL), f"ended {-signal.SIGKILL}"),
    "the server is told to end": (lambda one: os.kill(one.server, signal.SIGTERM), f"ended {-signal.SIGTERM}"),
}
"""What happens, and what the host says then, if it is still there."""


@pytest.mark.parametrize("name", ENDS)
def test_what_a_server_started_ends_with_it_and_with_its_host(name: str, tmp_path: Path) -> None:
    """B179, B180: within ten seconds none is left, and the port can be bound."""
    happens, says = ENDS[name]
    with reserve_port("127.0.0.1", 0) as port, started(tmp_path, port.number) as one:
        happens(one)
        assert one.left() == []
        socket.create_server(("127.0.0.1", port.number)).close()
        if says is not None:
            assert one.said() == says


def test_exit_codes_pass_and_a_command_that_cannot_run_is_named() -> None:
    reading, writing = os.pipe()
    for command, code, error in (
        (["sh", "-c", "exit 7"], 7, ""),
        (["/no/such/program"], 127, "/no/such/program cannot be run: [Errno 2] No such file"),
    ):
        argv = [sys.executable, "-I", "-S", reaper.__file__, *command]
        done = subprocess.run(argv, stdin=reading, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == code
        assert done.stderr.startswith(error)
    os.close(reading)
    os.close(writing)
