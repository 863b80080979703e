"""The process of the embedded server: its settings, its start, whether it lives and answers, its end."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

from buffer.errors import ServerLost, ServerRefused

START_S = 300.0
"""Seconds a start may take: it reads the data of a long run. A server that dies meanwhile ends the wait at once."""
IDLE_S = 600.0
"""Seconds that a server stays without a user when the last one was killed: a run is started again within that."""
STOP_S = 30.0
"""Seconds a stop may take: it writes the end of the append-only file."""
ABANDON_S = 1.0
"""Seconds in which a server that was just forked has written its number: milliseconds, if there is one."""
MAX_SOCKET_PATH = 107

_ALLOCATOR = {
    # With glibc's allocator freed payloads stay with the process, in as many arenas as there are threads.
    "MALLOC_ARENA_MAX": "2",
    # A fixed threshold: payloads above it are pages of their own, which go back to the system when they are freed. Left
    # alone it follows the largest one freed, up to 32 MB, and mixed payloads leave holes in the heap that no other one
    # fits: the process then held up to 1.25 x (100,000 groups of 150 KB) and 1.6 x (of 700 KB) of what was accounted
    # for, with it 1.19 x and 1.04 x. A lower threshold holds less and costs more of the server's CPU, for fresh pages.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    # Linux allows a process 65,530 mappings; what is above this number comes from the heap.
    "MALLOC_MMAP_MAX_": str(1 << 15),
}
# Its parent ends at once, so that it is a child of nobody here, who would have to wait for its end.
_DETACHED = "import os, sys; os.fork() or os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
_RECHECK_S = 0.02
_never = Event()


def start(directory: Path, program: str, *, idle_s: float = IDLE_S) -> str:
    """Start the server and wait until it answers; the path of its socket. One that is not waited for to the end, since
    Ctrl-C came, is stopped.

    Args:
        idle_s: of the reaper that is started beside it.
    Raises:
        ServerLost: it died or did not answer in time; the end of its log is in the message.
    """
    _forget_socket(directory)
    path = _new_socket_path()
    _write_private(directory / "where", f"{socket.gethostname()}\n{path}\n")
    if not (directory / "password").exists():
        _write_private(directory / "password", secrets.token_hex(32))
    settings = {
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "requirepass": (directory / "password").read_text(),
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        # Every payload passes through the file and is soon dead. Rewritten every 64 MB and compressed, as by default,
        # the file took as much CPU as the traffic itself. It is read at a start: 512 MB in a second or two.
        "auto-aof-rewrite-min-size": "512mb",
        "rdbcompression": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "yes",
        "pidfile": str(directory / "pid"),
        "logfile": str(directory / "server.log"),
        "set-proc-title": "no",  # the path of its settings in its command line is how it is told from another process
    }
    lines = (f"{name} {_quoted(value)}\n" for name, value in settings.items())
    _write_private(directory / "server.conf", "".join(lines))
    (directory / "pid").unlink(missing_ok=True)
    environment = {**os.environ, **_ALLOCATOR}
    command = [program, str(directory / "server.conf")]
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        _await_ready(directory, path, process)
        _start_reaper(directory, idle_s)
    except BaseException:
        _abandon(directory, process)
        raise
    return path


def _start_reaper(directory: Path, idle_s: float) -> None:
    command = [sys.executable, "-I", "-S", "-c", _DETACHED, "-m", "buffer.reaper", str(directory)]
    command += [str(pid_of(directory)), str(idle_s)]
    with (directory / "server.log").open("ab") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=True)


def _abandon(directory: Path, process: "subprocess.Popen[bytes]") -> None:
    """End a start that failed or was broken off."""
    process.kill()
    process.wait()
    # What it has forked by then, and is the server, writes the pid file before it reads its data.
    deadline = time.monotonic() + ABANDON_S
    while process.returncode <= 0 and pid_of(directory) == 0 and time.monotonic() < deadline:
        _never.wait(_RECHECK_S)
    stop(directory)


def _await_ready(directory: Path, path: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while ask(path, directory) != "ready":
        code = process.poll()
        # It leaves with 0 when it has become a daemon, whose pid is in the file.
        died = code is not None and (code != 0 or ((directory / "pid").exists() and not alive(directory)))
        if died or time.monotonic() > deadline:
            log = (directory / "server.log").read_text(errors="replace")[-1500:]
            raise ServerLost(f"the server of {directory} did not start (code {code}). The end of its log:\n{log}")
        _never.wait(_RECHECK_S)
    process.wait()


def await_answer(directory: Path, path: str) -> bool:
    """Whether the server that runs answers on its socket, once it has loaded its data."""
    deadline = time.monotonic() + START_S
    while (answer := ask(path, directory)) == "loading" and time.monotonic() < deadline:
        _never.wait(_RECHECK_S)
    return answer == "ready"


def stop(directory: Path) -> None:
    """SIGTERM, upon which it writes all it has; SIGKILL if it does not leave in time, which may lose its last
    second."""
    pid = pid_of(directory)  # asked once: the server removes the file before it has written its last line and left
    for how in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_S
        if runs(pid, directory):
            with suppress(ProcessLookupError):  # it left by itself
                os.kill(pid, how)
        while runs(pid, directory) and time.monotonic() < deadline:
            _never.wait(_RECHECK_S)
    if runs(pid, directory):
        raise ServerLost(f"the server of {directory}, process {pid}, did not end within {STOP_S} s of SIGKILL.")
    _forget_socket(directory)


def alive(directory: Path) -> bool:
    """Whether the process of the pid file is our server, and not another one with its number, nor what is left of
    it."""
    return runs(pid_of(directory), directory)


def runs(pid: int, directory: Path) -> bool:
    """Whether the process is the server of the directory, which need not be there any more."""
    if pid <= 0:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        listed = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        command = listed.stdout
    except ProcessLookupError:
        return False
    return str(directory / "server.conf").encode() in command  # that of a dead, unburied process is empty


def pid_of(directory: Path) -> int:
    """The number in the pid file; 0 if there is none yet."""
    try:
        return int((directory / "pid").read_text())
    except (FileNotFoundError, ValueError):  # not there, or not yet written
        return 0


def ask(path: str, directory: Path) -> str:
    """ready, loading, or silent."""
    password = (directory / "password").read_text()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        try:
            connection.connect(path)
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2 and (part := connection.recv(4096)):
                answer += part
        except OSError:
            return "silent"
    return "ready" if b"+PONG" in answer else "loading" if b"LOADING" in answer else "silent"


def _forget_socket(directory: Path) -> None:
    where = directory / "where"
    if where.exists():
        shutil.rmtree(Path(where.read_text().splitlines()[1]).parent, ignore_errors=True)
        where.unlink()


def _new_socket_path() -> str:
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(f"{parent}/asyncrl-12345678/redis.sock".encode()) <= MAX_SOCKET_PATH and os.access(parent, os.W_OK):
            return f"{tempfile.mkdtemp(prefix='asyncrl-', dir=parent)}/redis.sock"
    raise ServerRefused(
        f"no directory for the server's socket: {tempfile.gettempdir()} is too long or not writable, its path may have "
        f"{MAX_SOCKET_PATH} bytes. Set TMPDIR to a short path, or buffer.url to a server that you run."
    )


def _write_private(path: Path, text: str) -> None:
    """Mode 0600 from its first byte on, and never half written."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
