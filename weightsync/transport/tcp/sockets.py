"""The two kinds of sockets of this transport: one that listens for readers, and one end of a connection."""

import socket
import struct

from weightsync.config import TcpConfig
from weightsync.errors import TransportError

_TIMEVAL = struct.Struct("ll")

# A router forgets a connection that is silent between two versions, and tells neither end: each asks once a minute, and
# gives the other up after two.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


def listening(config: TcpConfig) -> socket.socket:
    """A non-blocking listener on the first free port of the range.

    Raises:
        TransportError: no port of the range is free, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.bind else socket.AF_INET
    ports = range(config.first_port, min(config.first_port + config.num_ports, 1 << 16)) if config.first_port else [0]
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        # A rank that starts again takes its port back from connections that died with the one before.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((config.bind, port))
            listener.listen(config.max_connections)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            last = error
    named = f"ports {ports[0]} to {ports[-1]}" if config.first_port else "any port"
    raise TransportError(
        f"weightsync.tcp: cannot listen on {named} of {config.bind}: {last}. Each trainer rank of a machine needs one: "
        "set weightsync.tcp.bind to an address of this machine, and first_port and num_ports to a range that is free."
    ) from last


def prepare(connection: socket.socket) -> None:
    """What both ends want: requests sent at once, and a dead other end found out though nobody sends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # as far as the system lets each connection have its own
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def wait_at_most(connection: socket.socket, seconds: float) -> None:
    """Bound what each call on a blocking socket may wait; one that is over raises BlockingIOError.

    In the kernel, because a socket with Python's own timeout is woken for every few segments.
    """
    whole = int(seconds)
    interval = _TIMEVAL.pack(whole, max(1, int((seconds - whole) * 1e6)))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, interval)


def hold_back(connection: socket.socket, unsent_bytes: int) -> None:
    """Let the kernel take no more than this ahead of what the other end takes: megabytes a connection otherwise."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
