"""Stands between a host and its server's processes, so that none of them outlives the host or the server.

    python -I -S reaper.py COMMAND ...

Standard input is a pipe whose other end the host holds: its end is the host's, however that ended. The server is the
child here. When one of the two has ended, all that the server started is killed, those included that left its process
group or lost their parent: they would go on holding its port and its device. Then this process ends as the server did,
so whoever waits for it may start the next one.

Servers have such children: SGLang's scheduler and detokenizer die with their parent only once they have imported
SGLang, which takes seconds. Linux only, and of the standard library only, to start in a moment.
"""

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
"""Signals that are meant for the server."""

_RESTORED = (*PASSED_ON, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)  # the last two: Python ignores them


def main(command: Sequence[str]) -> int:
    """Run `command` until it or the host ends; does not return when the server ended by a signal."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the server become children of this process
    # A host may be killed while this process is stopped, with the server's group.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)  # heard through the pipe
    signal.set_wakeup_fd(wakes)
    server = _start(command, libc)
    status = _watch(server, woken)
    left = _end_all(server)
    return _end_as(left if status is None else status)


def _start(command: Sequence[str], libc: ctypes.CDLL) -> int:
    reaper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the kernel keeps the wish across exec
        if os.getppid() == reaper:  # it may have ended before the call above
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(command[0], list(command))
    except OSError as error:
        print(f"{command[0]} cannot be run: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _watch(server: int, woken: int) -> int | None:
    """The server's status once it has ended; None once the host has."""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready and not os.read(0, 1):
            return None
        if woken not in ready:
            continue
        for number in os.read(woken, 64):
            if number in PASSED_ON:
                os.kill(server, number)
        status = None
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == server:
                    status = ended[1]
        if status is not None:
            return status


def _end_all(server: int) -> int:
    """Kill every child until there is none, since children of one that ended become children here; the server's
    status, if it was there."""
    status = 0
    while True:
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, ending = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == server:
            status = ending


def _children() -> list[int]:
    found, parent = [], str(os.getpid()).encode()
    with os.scandir("/proc") as processes:
        for process in processes:
            if process.name.isdigit() and _parent_of(process.path) == parent:
                found.append(int(process.name))
    return found


def _parent_of(process: str) -> bytes | None:
    try:
        stat = os.open(f"{process}/stat", os.O_RDONLY)
        try:
            return os.read(stat, 4096).rpartition(b")")[2].split()[1]  # a name in brackets may hold anything
        finally:
            os.close(stat)
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return None


def _end_as(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the server has left one, if any was wanted
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
