"""Ports of loopback for servers that a test starts later."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """`count` ports that the kernel gives to nobody else while the block lasts.

    Each is bound by a socket that does not listen: connections are refused until a server that sets SO_REUSEADDR, as
    servers do, listens there. A port that was only looked up could be another process's before the server has it.
    """
    with ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
        yield [int(holder.getsockname()[1]) for holder in holders]
