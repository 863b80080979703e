"""The program that confines itself and becomes `cell`: namespaces, a root directory of its own, limits, no rights.

consumes  its orders as JSON in its argument: see process.py
produces  one line of JSON on the socket: {"isolated": true or false, "why": ...}; then the cell as its child

It stays outside: when it is asked to end, or the worker dies, it kills the cell and all that came of it.
With namespaces there is nothing else to kill, because the kernel ends all processes of the cell's. Without them it
adopts the orphans and looks for them. Standard library only; nothing of the machine is changed outside its namespaces.
"""

import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
APART = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2
SYS_MOUNT_SETATTR = 442  # the same number on every architecture that Linux gave it to
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
MOST_CAPABILITIES = 64
NOBODY = 65534
FIRST_UID = 0x60000000  # plus a process id: a user that nobody else is, so that its processes are counted apart
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
CODE_FOLDER = "/code"
WRITABLE = ("/tmp", CODE_FOLDER, "/dev/shm")
OPEN_FILES = 256
OWN_PROCESSES = 2  # the namespace's first process, and, in a user namespace, the one that stays outside

libc = ctypes.CDLL(None, use_errno=True)


class NotPermitted(Exception):
    """The kernel refuses a step; says which, and why."""


def main(orders: dict[str, Any]) -> int:
    """Confine, fork the cell, wait for it. Returns its exit code, or 128 + the signal that ended it."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    home = Path(orders["home"])
    connection = socket.socket(fileno=os.dup(orders["descriptor"]))
    why = enter_namespaces() if orders["namespaces"] else "not asked for"
    orders |= {"number": os.getpid()}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until both sides of the fork are ready for it
    child = os.fork()
    if child == 0:
        _become_cell(orders, home, connection, why)
    connection.close()
    os.close(orders["descriptor"])
    for descriptor in (1, 2):
        os.dup2(0, descriptor)  # what the cell prints ends with the cell
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_descendants()
    with suppress(OSError):  # never more than an empty folder: files of the machine may be mounted below it here
        home.rmdir()
    return _exit_code(status)


def enter_namespaces() -> str:
    """Leave the machine's namespaces for new ones. Returns "" or why it is not permitted."""
    if libc.unshare(APART) == 0:
        return ""
    first = _reason()
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | APART) != 0:
        return f"unshare: {first}; with a user namespace: {_reason()}"
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
    except OSError as error:
        return f"mapping the user: {error.strerror}"
    return ""


def _become_cell(orders: dict[str, Any], home: Path, connection: socket.socket, why: str) -> None:
    """Never returns."""
    try:
        cell, folder = orders["cell"], str(home)
        if not why:
            try:
                make_root(orders, home)
            except (NotPermitted, OSError) as error:
                why = str(error)
                libc.umount2(os.fsencode(home), MNT_DETACH)
            else:
                cell, folder = enter_root(home)
        _drop_rights(orders, folder, confined=not why)
        connection.sendall(json.dumps({"isolated": not why, "why": why}).encode() + b"\n")
        connection.close()
        if why and orders["required"]:
            os._exit(3)
        if not why and (inner := os.fork()) != 0:
            _be_init(inner, orders["descriptor"])
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(folder)
        os.set_inheritable(orders["descriptor"], True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        command = [orders["python"], "-I", "-B", "-u", "-X", "utf8", cell, str(orders["descriptor"])]
        os.execve(command[0], command, os.environ | {"HOME": folder, "TMPDIR": folder})
    except BaseException as error:  # the fork must never go on as if it were the parent
        with suppress(OSError):
            os.write(2, f"confine: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(4)


def _be_init(cell: int, descriptor: int) -> None:
    """Be the first process of the namespace, which signals do not reach and orphans come to; end with the cell."""
    os.closerange(1, descriptor + 1)  # what the cell prints, and its socket, end with the cell
    while True:
        pid, status = os.wait()
        if pid == cell:
            os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    """As shells have it: 128 + the signal that ended it."""
    return os.waitstatus_to_exitcode(status) % 256 if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def make_root(orders: dict[str, Any], home: Path) -> None:
    """Make a root directory in memory that holds Python and little else, read-only.

    Raises:
        NotPermitted: a step was refused.
    """
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("tmpfs", home, "tmpfs", MS_NOSUID | MS_NODEV, f"size={orders['memory_bytes']},nr_inodes=16384,mode=755")
    shown: list[Path] = []
    for path in map(Path, (*SYSTEM, *orders["visible"], *DEVICES)):
        if path.is_symlink():
            (home / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            (home / path.relative_to("/")).symlink_to(path.readlink())
        elif path.exists() and not any(path.is_relative_to(other) for other in shown):
            shown.append(path)
            _show(path, home / path.relative_to("/"))
    (home / "proc").mkdir()
    # Without it code sees no processes at all, which is as good; some container hosts refuse it.
    with suppress(NotPermitted):
        _mount("proc", home / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in WRITABLE:
        (home / name[1:]).mkdir(parents=True, exist_ok=True)
        (home / name[1:]).chmod(0o1777)
    (home / "etc").mkdir(exist_ok=True)
    (home / "etc/passwd").write_text(f"python:x:0:0::{CODE_FOLDER}:/bin/sh\n")
    shutil.copyfile(orders["cell"], home / "cell.py")


def enter_root(home: Path) -> tuple[str, str]:
    """Go there. Returns where the cell's program and the folder for its files are, as seen from there."""
    os.chdir(home)
    _mount(".", "/", "", MS_MOVE)
    os.chroot(".")
    os.chdir("/")
    return "/cell.py", CODE_FOLDER


def _show(path: Path, at: Path) -> None:
    """Have a file or folder of the machine at another place, to be read only."""
    if path.is_dir():
        at.mkdir(parents=True, exist_ok=True)
    else:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.touch()
    _mount(path, at, "", MS_BIND | MS_REC)
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID, 0, 0, 0)  # set, clear, propagation, user namespace
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    if libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(at), AT_RECURSIVE, attributes, size) != 0:
        raise NotPermitted(f"{path} cannot be made read-only: {_reason()} (Linux {os.uname().release})")


def _drop_rights(orders: dict[str, Any], folder: str, *, confined: bool) -> None:
    """Become nobody in particular if this is root, and set the limits."""
    for capability in range(MOST_CAPABILITIES):
        _prctl(PR_CAPBSET_DROP, capability)  # also a root of a user namespace has none after the next exec
    if os.getuid() == 0 and (confined or _readable_by_all(orders)):
        for uid in (FIRST_UID + orders["number"], NOBODY):
            if _become(uid, folder):
                break
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for limit, soft, hard in (
        (resource.RLIMIT_AS, orders["memory_bytes"], orders["memory_bytes"]),
        (resource.RLIMIT_CPU, orders["cpu_s"], orders["cpu_s"] + 1),  # at the first it gets a signal with a name
        (resource.RLIMIT_FSIZE, orders["file_bytes"], orders["file_bytes"]),
        (resource.RLIMIT_NPROC, orders["processes"] + OWN_PROCESSES, orders["processes"] + OWN_PROCESSES),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        most = resource.getrlimit(limit)[1]
        bounded = [value if most == resource.RLIM_INFINITY else min(value, most) for value in (soft, hard)]
        resource.setrlimit(limit, (bounded[0], bounded[1]))


def _become(uid: int, folder: str) -> bool:
    """Be that user, and let it write in the folder. False: a user namespace around this has no such user."""
    try:
        os.chown(folder, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        return False
    return True


def _readable_by_all(orders: dict[str, Any]) -> bool:
    """Whether another user than root could run Python here."""
    paths = [Path(text).resolve() for text in (orders["python"], orders["cell"], *orders["visible"])]
    return all(parent.stat().st_mode & 0o001 for path in paths for parent in (path, *path.parents) if parent.is_dir())


def _end_descendants() -> None:
    """Kill what the cell left behind, until nothing is left."""
    while children := _children_of(os.getpid()):
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _children_of(pid: int) -> list[int]:
    """Orphans of the cell become this process's own, one generation after the other."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(text) for text in tasks.read_text().split()]
    except OSError:
        return []


def _mount(source: str | Path, target: str | Path, kind: str, flags: int, options: str = "") -> None:
    data = options.encode() or None
    if libc.mount(os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data) != 0:
        raise NotPermitted(f"mount {kind or source} at {target}: {_reason()}")


def _prctl(option: int, value: int) -> None:
    libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _reason() -> str:
    return os.strerror(ctypes.get_errno())


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
