"""The tool `python` with real processes: what the code may do, what stops it, what it leaves behind."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from asyncrl.config.tools import PythonToolConfig
from asyncrl.envs.tools.base import ToolAnswer, ToolError
from asyncrl.envs.tools.python import process as process_module
from asyncrl.envs.tools.python.process import Ended, PythonProcess, Ran
from asyncrl.envs.tools.python.tool import PythonTool, probe
from asyncrl.errors import PreflightError

T = TypeVar("T")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and namespaces are those of Linux")


def config(**given: Any) -> PythonToolConfig:
    return PythonToolConfig(**{"timeout_s": 20.0, "cpu_s": 10, "memory_bytes": 256 << 20, **given})


def in_process(use: Callable[[PythonProcess], Awaitable[T]], *, namespaces: bool = True, **given: Any) -> T:
    """Use a started process, and end it."""

    async def run() -> T:
        process = PythonProcess(config(**given))
        try:
            await process.start(namespaces=namespaces)
            return await use(process)
        finally:
            await process.end()

    return asyncio.run(run())


def ran(code: str, *, namespaces: bool = True, **given: Any) -> Ran:
    return in_process(lambda process: process.run(code), namespaces=namespaces, **given)


def ended(code: str, *, namespaces: bool = True, **given: Any) -> str:
    with pytest.raises(Ended) as end:
        ran(code, namespaces=namespaces, **given)
    return str(end.value)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A word in the environment of every process that the test has started."""
    word, environment = f"mark-{uuid4().hex}", process_module._environment
    monkeypatch.setattr(process_module, "_environment", lambda: {**environment(), "MARK": word})
    return word


@pytest.fixture(scope="module")
def isolated() -> bool:
    """Whether this kernel permits namespaces."""
    return asyncio.run(probe(config())).isolated


@pytest.fixture
def needs_namespaces(isolated: bool) -> None:
    if not isolated:
        pytest.skip("the kernel permits no namespaces here")


@pytest.fixture(params=["namespaces", "limits alone"])
def namespaces(request: pytest.FixtureRequest, isolated: bool) -> bool:
    if request.param == "namespaces" and not isolated:
        pytest.skip("the kernel permits no namespaces here")
    return bool(request.param == "namespaces")


def test_code_prints_shows_its_last_value_and_keeps_its_variables(namespaces: bool) -> None:
    async def use(process: PythonProcess) -> list[Ran]:
        pieces = ("x = 20\nprint('so')\nx + 1", "x * 2", "def f():\n    return x", "f()", "None", "print('caf\\u00e9')")
        return [await process.run(piece) for piece in pieces]

    outputs = in_process(use, namespaces=namespaces)
    assert [each.output for each in outputs] == ["so\n21\n", "40\n", "", "20\n", "", "caf\u00e9\n"]
    assert all(each.ok for each in outputs)


def test_errors_are_shown_with_their_line_and_end_nothing() -> None:
    async def use(process: PythonProcess) -> list[Ran]:
        pieces = (
            "def f():\n    return 1 / 0\nf()",
            "1 +",
            "exit(3)",
            "exit()",
            "raise KeyboardInterrupt",
            "'\\0'",
            "7",
        )
        return [await process.run(piece) for piece in pieces]

    outputs = in_process(use)
    assert [each.ok for each in outputs] == [False, False, False, True, False, True, True]
    assert "return 1 / 0" in outputs[0].output
    assert "ZeroDivisionError: division by zero" in outputs[0].output
    assert "SyntaxError" in outputs[1].output
    assert "SystemExit: 3" in outputs[2].output
    assert "KeyboardInterrupt" in outputs[4].output
    assert outputs[6].output == "7\n"


def test_a_loop_without_end_is_stopped_and_what_it_printed_is_shown(namespaces: bool) -> None:
    before = time.monotonic()
    text = ended("print('begun')\nimport time\nwhile True: time.sleep(1)", namespaces=namespaces, timeout_s=3)
    assert text == "begun\n[stopped after 3 s]"
    assert time.monotonic() - before < 60


def test_processor_time_is_bounded_also_where_the_clock_is_not() -> None:
    assert "stopped after 1 s of processor time" in ended("while True: pass", cpu_s=1)


def test_memory_is_bounded(namespaces: bool) -> None:
    found = ran("a = []\nwhile True: a.append(bytearray(1 << 20))", namespaces=namespaces)
    assert not found.ok
    assert "MemoryError" in found.output


FORKS = """
import os, time
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
    made += 1
print(made)
"""


def test_a_fork_bomb_is_bounded_and_all_of_it_is_ended(namespaces: bool, mark: str) -> None:
    if not namespaces and os.getuid() == 0 and not _root_is_dropped():
        pytest.skip("root is not bound by a number of processes, and Python is where only root can read it")
    found = ran(FORKS, namespaces=namespaces, processes=6)
    assert 0 < int(found.output) <= 8
    assert _left_over(mark) == []


def _root_is_dropped() -> bool:
    return ran("import os; os.getuid()", namespaces=False).output != "0\n"


def _left_over(mark: str) -> list[int]:
    """Processes that were started with the mark in their environment, and still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = mark.encode() in (path / "environ").read_bytes()
            is_running = (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:  # gone meanwhile, or somebody else's
            continue
        if is_marked and is_running:
            found.append(int(path.name))
    return found


DAEMON = """
import os, subprocess, sys
subprocess.Popen(
    [sys.executable, "-c", "import time; open('made', 'w').close(); time.sleep(60)"],
    start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
import time
while not os.path.exists('made'): time.sleep(0.01)
"""


def test_what_left_the_process_group_is_ended_too(namespaces: bool, mark: str) -> None:
    assert ran(DAEMON, namespaces=namespaces).ok
    assert _left_over(mark) == []


def test_files_are_bounded_and_gone_afterwards(namespaces: bool) -> None:
    code = "open('f', 'wb').write(b'x' * (2 << 20))"
    found = ran(code, namespaces=namespaces, file_bytes=1 << 20)
    assert not found.ok
    assert "File too large" in found.output
    where = ran("import os; open('f', 'w').write('x'); print(os.getcwd(), os.listdir())", namespaces=namespaces)
    assert where.output.endswith("['f']\n")
    assert not Path(where.output.split()[0]).exists()


def test_many_files_do_not_fill_the_memory_of_the_machine(needs_namespaces: None) -> None:
    code = "for i in range(500): open(str(i), 'wb').write(bytes(1 << 20))"
    found = ran(code, memory_bytes=64 << 20)
    assert "No space left on device" in found.output


def test_no_network_can_be_reached(needs_namespaces: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = ran(f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)")
        assert not found.ok
        assert "OSError" in found.output or "ConnectionRefusedError" in found.output
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


READS = """
import glob, os
texts = [repr(dict(os.environ))]
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        texts.append(open(path, "rb").read().decode("latin-1"))
    except OSError:
        pass
print("secret-of-the-worker" in "".join(texts), len(texts))
"""


def test_no_secret_of_the_environment_can_be_read(monkeypatch: pytest.MonkeyPatch, isolated: bool) -> None:
    """Neither its own variables nor those of other processes hold any."""
    monkeypatch.setenv("SECRET", "secret-of-the-worker")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:  # has the variable
        try:
            assert ran(READS).output.startswith("False ") or not isolated
            assert "secret-of-the-worker" not in ran("import os; dict(os.environ)", namespaces=False).output
        finally:
            other.kill()


def test_files_of_the_machine_can_be_neither_seen_nor_changed(tmp_path: Path, needs_namespaces: None) -> None:
    """B219: code that deletes a file of the run deletes nothing."""
    marker = tmp_path / "marker"
    marker.write_text("here")
    code = f"import os\nprint(os.path.exists({str(marker)!r}))\nos.remove({str(marker)!r})"
    found = ran(code)
    assert found.output.startswith("False\n")
    assert not found.ok
    assert marker.read_text() == "here"
    writes = "for path in ('/usr/x', ast.__file__):\n  try: open(path, 'a')\n  except OSError: print('refused')"
    assert ran(f"import ast\n{writes}").output == "refused\nrefused\n"


RIGHTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
tried = {
    "mount": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    "chroot": libc.chroot(b"/tmp"),
    "setuid": libc.setresuid(0, 0, 0) if os.getuid() else -1,
}
print(*[name for name, result in tried.items() if result == 0])
if os.path.exists("/proc/self/status"):
    print(*{line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "CapBnd"))})
"""


def test_the_code_has_no_rights(needs_namespaces: None) -> None:
    assert ran(RIGHTS).output in ("\n", "\n0000000000000000\n")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(5)", "[the process left with code 5]"),
        ("import os; print('bye', flush=True); os.kill(os.getpid(), 9)", "bye\n[the process was ended by SIGKILL]"),
        ("import ctypes; ctypes.string_at(0)", "[the process was ended by SIGSEGV]"),
        (
            "import os, sys\nfor fd in range(3, 64):\n  try: os.write(fd, b'y' * 9999)\n  except OSError: pass\n",
            "[stopped, because it broke the connection to the program around it]",
        ),
    ],
)
def test_a_process_that_ends_itself_says_how(code: str, why: str) -> None:
    assert ended(code).endswith(why)


def test_output_is_bounded_with_its_beginning_and_its_end() -> None:
    found = ran("print('begin'); print('x' * 5000); print('end')", max_output_bytes=256)
    assert found.ok
    assert found.output.startswith("begin\nxxx")
    assert found.output.endswith("xxx\nend\n")
    assert f"[{5000 + 11 - 256} bytes of output left out]" in found.output
    text = ended("while True: print('y' * 1000)", max_output_bytes=256)
    assert text.endswith("[stopped, because it printed more than 16384 bytes]")


def executed(use: Callable[[PythonTool], Awaitable[T]], **given: Any) -> T:
    async def run() -> T:
        tool = PythonTool(config(**given))
        try:
            return await use(tool)
        finally:
            await tool.close()
            assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    return asyncio.run(run())


def test_a_call_has_a_process_of_its_own_unless_state_is_kept() -> None:
    async def use(tool: PythonTool) -> list[ToolAnswer]:
        await tool.create("a")
        await tool.create("b")
        answers = [await tool.execute(name, {"code": code}) for name, code in
                   (("a", "x = 1"), ("a", "x"), ("b", "x"))]  # fmt: skip
        await tool.release("a")
        await tool.release("b")
        return answers

    assert [answer.is_error for answer in executed(use)] == [False, True, True]
    kept = executed(use, keep_state=True)
    assert [answer.is_error for answer in kept] == [False, False, True]
    assert kept[1].text == "1\n"


def test_a_kept_session_that_ended_says_so_and_the_next_call_starts_anew(mark: str) -> None:
    async def use(tool: PythonTool) -> list[ToolAnswer]:
        await tool.create("a")
        codes = ("x = 1", "import os; os._exit(0)", "x")
        return [await tool.execute("a", {"code": code}) for code in codes]  # never released: close ends it

    first, second, third = executed(use, keep_state=True)
    assert not first.is_error
    assert second.text == "[the process left with code 0]\n[variables are lost; the next call starts anew]"
    assert "NameError" in third.text
    assert _left_over(mark) == []


def test_a_call_that_is_cancelled_leaves_nothing_running(mark: str) -> None:
    """B144: at its deadline a call is cancelled from outside."""

    async def use(tool: PythonTool) -> None:
        await tool.create("a")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await tool.execute("a", {"code": "import time; time.sleep(60)"})

    executed(use)
    executed(use, keep_state=True)
    assert _left_over(mark) == []


def test_a_call_that_goes_on_when_the_worker_stops_is_ended(mark: str) -> None:
    async def use(tool: PythonTool) -> list[ToolAnswer]:
        calls = []
        for name in ("a", "b"):
            await tool.create(name)
            calls.append(asyncio.create_task(tool.execute(name, {"code": "while True: print(1)"})))
        while not any(process._output.text() for process in [*tool._running, *tool._kept.values()]):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await tool.close()
        return await asyncio.gather(*calls)

    for keep_state in (False, True):
        answers = executed(use, keep_state=keep_state, max_output_bytes=1 << 20)
        assert all(answer.is_error for answer in answers)
    assert _left_over(mark) == []


def test_calls_over_the_limit_wait_and_those_of_one_session_come_one_after_the_other() -> None:
    async def use(tool: PythonTool) -> list[ToolAnswer]:
        await tool.create("a")
        await tool.execute("a", {"code": "n = 0"})
        await asyncio.gather(*(tool.execute("a", {"code": "n += 1"}) for _ in range(5)))
        return [await tool.execute("a", {"code": "n"})]

    assert executed(use, keep_state=True, max_running=1)[0].text == "5\n"


@pytest.mark.parametrize("arguments", [{}, {"code": 3}, {"code": "1", "more": "2"}, {"code": "x" * (1 << 20)}])
def test_wrong_arguments_start_nothing(arguments: dict[str, Any]) -> None:
    async def use(tool: PythonTool) -> None:
        await tool.create("a")
        with pytest.raises(ToolError):
            await tool.execute("a", arguments)

    executed(use)


DIES = """
import asyncio, os, sys
from asyncrl.config.tools import PythonToolConfig
from asyncrl.envs.tools.python import process as module
from asyncrl.envs.tools.python.process import PythonProcess
environment = module._environment
module._environment = lambda: {**environment(), "MARK": sys.argv[2]}
async def main():
    process = PythonProcess(PythonToolConfig())
    await process.start(namespaces=sys.argv[1] == "yes")
    running = asyncio.create_task(process.run("print('on')\\nwhile True: pass"))
    while not process._output.text():
        await asyncio.sleep(0.01)
    print("running", flush=True)
    await running
asyncio.run(main())
"""


def test_the_code_ends_when_the_worker_is_killed(namespaces: bool, mark: str) -> None:
    command = [sys.executable, "-c", DIES, "yes" if namespaces else "no", mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "running\n"
        assert _left_over(mark) != []
        worker.kill()
    deadline = time.monotonic() + 20
    while _left_over(mark) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert _left_over(mark) == []


@pytest.fixture
def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose kernel refuses them, as the worker sees it."""
    start = PythonProcess.start
    monkeypatch.setattr(PythonProcess, "start", lambda self: start(self, namespaces=False))


def test_a_machine_that_cannot_isolate_is_told_or_refused(without_namespaces: None) -> None:
    found = asyncio.run(probe(config()))
    assert not found.isolated
    assert found.why == "not asked for"
    with pytest.raises(PreflightError, match=r"it did not start: not asked for.*isolation = required"):
        asyncio.run(probe(config(isolation="required")))
