"""The process of one inference server: started, watched and stopped.

The server is in a process group of its own, so that a Ctrl-C at the terminal reaches only its host, which stops it in
order. It ends when the host ends, however that ends, and all that it started with it: see reaper.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from asyncrl import waits
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.launcher import Command

_REAPER = Path(__file__).with_name("reaper.py")
REAPED_S = 5.0  # what is killed is gone in a moment, unless a device driver holds it


class ServerProcess:
    """One life of a server process, from start to stop. On Linux its process is the reaper's, the leader of the
    server's group, which ends as the server does once nothing of it is left."""

    def __init__(self, name: str, what: Command, log: Path, *, stop_timeout_s: float = 20.0) -> None:
        self.name, self.log = name, log
        self._command, self._stop_timeout_s = what, stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._lifeline: int | None = None  # the reaper sees its end, and so ours

    @property
    def pid(self) -> int | None:
        """Process id, None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    async def start(self, is_ready: Callable[[], Awaitable[object]], timeout_s: float) -> None:
        """Start the process and wait until `is_ready` answers instead of raising ServerUnavailable.

        Raises:
            ServerUnavailable: the process ended, or `timeout_s` passed; the end of its log is in the message.
        """
        self._launch()
        deadline, pause_s = time.monotonic() + timeout_s, 0.05
        while True:
            try:
                await is_ready()
                return
            except ServerUnavailable as not_yet:
                reason = not_yet
            if self.exit_code is not None:
                raise ServerUnavailable(
                    f"{self.name} ended with exit code {self.exit_code} before it answered. {self.log} ends with:\n"
                    f"{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                await self.stop()
                raise ServerUnavailable(
                    f"{self.name} did not answer within inference.start_timeout_s = {timeout_s:g} s ({reason}) and was "
                    f"stopped. {self.log} ends with:\n{self.log_tail()}"
                )
            await waits.pause("host waits for its server to start", pause_s)
            pause_s = min(1.0, pause_s * 1.5)

    def _launch(self) -> None:
        """Not by asyncio, which kills its children when a loop is closed over them: that would be the reaper."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        argv = list(self._command.argv)
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", str(_REAPER), *argv]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(self.log.open("ab"))
            theirs, self._lifeline = os.pipe()
            stack.callback(os.close, theirs)
            process = self._process = subprocess.Popen(
                argv,
                stdin=theirs,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._command.env},
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._ended.set)

        threading.Thread(target=wait, name=f"waits for {self.name}", daemon=True).start()

    async def ended(self) -> int:
        """Wait for the process to end; its exit code."""
        assert self._process is not None, "the server was not started"
        await self._ended.wait()
        return self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL when that does not help; all that the server started ends too. Repeating is harmless.

        The first is for the server alone, which ends its children in order: SGLang takes one that was signalled beside
        it for a crash, and looks into that for seconds.
        """
        if self._process is None:
            return
        if self.exit_code is None:
            self._process.terminate()  # the reaper passes it on
            await self._ends_within(self._stop_timeout_s)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
            if sys.platform == "linux":
                await self._ends_within(REAPED_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._ended.wait()

    async def _ends_within(self, seconds: float) -> None:
        with waits.timed(f"waiting for {self.name} to stop"), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def log_tail(self, num_chars: int = 2000) -> str:
        """The end of the log, for messages."""
        try:
            return self.log.read_text(errors="replace")[-num_chars:].strip()
        except OSError as error:
            return f"(no log: {error})"
