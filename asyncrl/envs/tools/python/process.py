"""One confined process as its user sees it: started, given pieces of code, ended with all that it started."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl import waits
from asyncrl.config.tools import PythonToolConfig
from asyncrl.envs.tools.python.output import Output

FOLDER = Path(__file__).parent
START_S = 60.0  # two starts of Python; a machine that starts many at once takes long
MAX_LINE = 4096
END_S, REAP_S = 2.0, 10.0  # how long a process may take to end all that it started, and the kernel after a kill
FROM_HERE = ("LD_LIBRARY_PATH",)  # some builds of Python do not start without it; nothing else is passed on


class Ended(Exception):
    """The process is gone, and what it knew with it; says why, in words for the model."""


@dataclass(frozen=True)
class Ran:
    """What a piece of code did: its output, and whether it ended without an error."""

    output: str
    ok: bool


@dataclass(frozen=True)
class Confined:
    """Whether namespaces hide network, files and processes of the machine from the code; else why not."""

    isolated: bool
    why: str


class PythonProcess:
    """A process for one episode, or for one call. Not for two calls at once."""

    def __init__(self, config: PythonToolConfig) -> None:
        self._config = config
        self._output = Output(config.max_output_bytes)
        self._process: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._pipe: int | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self, *, namespaces: bool = True) -> Confined:
        """Start it, and wait until it can be given code.

        Args:
            namespaces: False: do not try, for tests of the limits alone.
        Raises:
            Ended: it did not come up.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._spawn(theirs.fileno(), namespaces)
        self._streams = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
        try:
            async with asyncio.timeout(START_S):
                told = await self._line()
                facts = json.loads(told)
                ready = await self._line()
        except TimeoutError:
            raise Ended(f"it did not start within {START_S:g} s") from None
        except ValueError:
            raise Ended(f"it did not start: {self._drained().text()}") from None
        if ready != "ready":
            raise Ended(f"it did not start: {facts['why'] or self._drained().text()}")
        self._drained().clear()  # what the start of Python may have said
        return Confined(bool(facts["isolated"]), str(facts["why"]))

    async def run(self, code: str) -> Ran:
        """Run a piece of code.

        Raises:
            Ended: the process did not outlive it: it left, was killed by a limit, or took too long.
        """
        assert self._streams is not None
        body = code.encode("utf-8", "replace")
        writer = self._streams[1]
        self._output.clear()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                writer.write(len(body).to_bytes(4, "little") + body)
                await writer.drain()
                answer = await self._line()
        except TimeoutError:
            raise Ended(self._last_words(f"stopped after {self._config.timeout_s:g} s")) from None
        except (ConnectionError, ValueError):  # ValueError: an endless line, which only the code can have written
            answer = ""
        if answer not in ("ok", "error") or self._drained().is_over:
            raise Ended(self._last_words(await self._how_it_ended()))
        return Ran(self._drained().text(), answer == "ok")

    async def end(self) -> None:
        """End it with all that it started, and wait until it is gone. Later calls do nothing. Cancelled, it goes on
        without being waited for."""
        process, home = self._process, self._home
        self._process = self._home = None
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
        self._close_pipe()
        if process is not None and home is not None:
            process.send_signal(signal.SIGTERM)
            await asyncio.shield(asyncio.ensure_future(waits.in_thread(_reap, process, home)))

    def _spawn(self, descriptor: int, namespaces: bool) -> None:
        config = self._config
        self._home = Path(tempfile.mkdtemp(prefix="asyncrl-python-"))
        prefixes = [Path(sys.prefix), Path(sys.base_prefix)]
        orders = {
            "descriptor": descriptor,
            "home": str(self._home),
            "python": sys.executable,
            "cell": str(FOLDER / "cell.py"),
            "visible": [str(path) for prefix in prefixes for path in dict.fromkeys((prefix, prefix.resolve()))],
            "namespaces": namespaces,
            "required": config.isolation == "required",
            "cpu_s": config.cpu_s,
            "memory_bytes": config.memory_bytes,
            "file_bytes": config.file_bytes,
            "processes": config.processes,
        }
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(FOLDER / "confine.py"), json.dumps(orders)],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                pass_fds=[descriptor],
                cwd="/",
                env=_environment(),
                start_new_session=True,  # a kill of its group reaches what has not left it
            )
        finally:
            os.close(theirs)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    def _read(self) -> None:
        """Take what was printed. Called when there is something."""
        assert self._pipe is not None
        try:
            chunk = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        if not chunk or not self._output.take(chunk):
            self._close_pipe()  # the next write of the code fails, and its process with it

    def _drained(self) -> Output:
        """The output with what was printed before now: a process answers after it has flushed."""
        while self._pipe is not None:
            try:
                chunk = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                break
            if not chunk or not self._output.take(chunk):
                self._close_pipe()
        return self._output

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    async def _line(self) -> str:
        """The next line, "" when the process is gone."""
        assert self._streams is not None
        return (await self._streams[0].readline()).decode("ascii", "replace").strip()

    async def _how_it_ended(self) -> str:
        process = self._process
        if process is None:
            return "stopped with the worker"
        if self._output.is_over:
            return f"stopped, because it printed more than {self._output.most} bytes"
        try:
            code = await waits.in_thread(lambda: process.wait(END_S))
        except subprocess.TimeoutExpired:
            return "stopped, because it broke the connection to the program around it"
        name = signal.Signals(code - 128).name if code > 128 and code - 128 in set(signal.Signals) else ""
        if name == "SIGXCPU":
            return f"stopped after {self._config.cpu_s} s of processor time"
        return f"the process was ended by {name}" if name else f"the process left with code {code}"

    def _last_words(self, why: str) -> str:
        text = self._drained().text()
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}[{why}]"


def _environment() -> dict[str, str]:
    """Nothing of the worker's, where secrets are."""
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")
    here = {name: os.environ[name] for name in FROM_HERE if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "MPLBACKEND": "Agg", **quiet, **here}


def _reap(process: subprocess.Popen[bytes], home: Path) -> None:
    """Wait for a process that was told to end, and remove its folder."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(REAP_S)
    shutil.rmtree(home, ignore_errors=True)
