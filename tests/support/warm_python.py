"""Stands in the place of SGLang's interpreter: hands `-m sglang.launch_server ...` to `warm_sglang` at a socket.

It has the server's exit code, passes signals on, and the server dies with it. stdlib only, to start quickly.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main(path: str, argv: list[str]) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    request = {"argv": argv, "env": dict(os.environ), "cwd": str(Path.cwd())}
    # A signal that comes before the server runs waits until it does.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
    for number in signals:
        signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = int(connection.recv(64))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
