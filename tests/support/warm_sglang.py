"""SGLang servers forked from a process that has imported it already: a tenth of a start's time and memory.

`python -m tests.support.warm_sglang SOCKET`, run by SGLang's own interpreter, imports SGLang, says "ready", and forks a
server for each connection; `warm_python` is at the other end, in the place of that interpreter. What runs is SGLang's
launch_server with its own arguments and environment. Only the way its processes are made differs: SGLang starts its
children by spawn, which imports everything again in each; here they are forked too.

A connection carries the three standard streams and a JSON line {argv, env, cwd}; then one byte for each signal to pass
on. The answer is the exit status. A connection that ends takes its server with it, children included; the end of this
process is its reaper's business.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import sys
from importlib import import_module

MODULES = (
    *("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler"),
    *("sglang.srt.managers.detokenizer_manager", "sglang.srt.managers.data_parallel_controller"),
    *("sglang.srt.models.registry", "weightsync.sglang_loader"),
)


def main(path: str) -> None:
    for name in MODULES:
        import_module(name)
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment]  # SGLang asks for spawn
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    watch = selectors.DefaultSelector()
    watch.register(listener, selectors.EVENT_READ)
    servers: dict[socket.socket, int] = {}
    while True:
        for key, _ in watch.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                servers[connection] = pid = fork_server(connection, [listener, *servers])
                watch.register(connection, selectors.EVENT_READ)
                watch.register(os.pidfd_open(pid), selectors.EVENT_READ, connection)
            elif key.data is None:
                pass_on(key.fileobj, servers)
            else:
                ended(key.fd, key.data, servers, watch)


def fork_server(connection: socket.socket, others: list[socket.socket]) -> int:
    request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not request.endswith(b"\n"):  # nothing follows it before the server is asked for
        request += connection.recv(1 << 20)
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        return pid
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # it dies with the warm process, however that dies
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for other in (connection, *others):
        other.close()
    asked = json.loads(request)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    flag, module, *arguments = asked["argv"]
    assert flag == "-m", asked["argv"]
    sys.argv = [module, *arguments]
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def pass_on(connection: socket.socket, servers: dict[socket.socket, int]) -> None:
    """A signal for a server; at the end of its connection, the end of its processes."""
    numbers = connection.recv(16)
    for number in numbers:
        os.kill(servers[connection], number)
    if not numbers and connection in servers:
        end_group(servers[connection])


def ended(
    pidfd: int, connection: socket.socket, servers: dict[socket.socket, int], watch: selectors.BaseSelector
) -> None:
    """A server is over: say how, and end what is left of it."""
    pid = servers.pop(connection)
    _, status = os.waitpid(pid, 0)
    end_group(pid)
    watch.unregister(pidfd)
    watch.unregister(connection)
    os.close(pidfd)
    with contextlib.suppress(OSError):  # whoever asked for it is gone
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    connection.close()


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
