"""A port for a process that is started later: its own from the moment that it is chosen."""

import socket
import sys
from types import TracebackType
from typing import Self


class ReservedPort:
    """A TCP port of this machine that the kernel gives to nobody else until `close`.

    Seconds pass until a started process listens. A port that was only looked up is another's by then if an outgoing
    connection of anybody was given it. So a socket stays bound to it without listening: Linux gives such a port
    to nobody who asks for any, lets those listen on it who ask for it with SO_REUSEADDR, as servers do, and refuses
    connections until then. Elsewhere that socket would be in the server's way, and the port is only looked up.

    Args:
        host: address of this machine, IPv4 or IPv6.
        wanted: the port; 0: any that is free.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """

    def __init__(self, host: str, wanted: int = 0) -> None:
        self._holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._holder.bind((host, wanted))
            self.number: int = self._holder.getsockname()[1]
        except OSError:
            self._holder.close()
            raise
        if sys.platform != "linux":
            self._holder.close()

    def close(self) -> None:
        """Let it go. Who listens on it goes on. Repeating is harmless."""
        self._holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
