"""Does anybody listen where a cluster's head is said to be? Its library would try for minutes before it says no."""

import socket
from urllib.parse import urlsplit

CONNECT_S = 10.0


def why_unreachable(address: str) -> str | None:
    """Why no connection can be made to host:port, in words; None if one can, or if `address` names no host."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"that is no address: {error}"
    if host is None or port is None:
        return None
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return f"nobody answers there: {error}"
    return None
