"""Where a part server is reached: what a rank says in the log, and what a reader makes of it."""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from weightsync.config import TcpConfig
from weightsync.errors import TransportError

# Addresses for documentation: looking for the way there sends nothing.
_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def url_of(config: TcpConfig, port: int) -> str:
    """tcp://host:port of a server that listens on `port` of config.bind."""
    host = config.advertise
    if host is None:
        host = _own_address(config.bind) if ip_address(config.bind).is_unspecified else config.bind
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def address_of(url: str) -> tuple[str, int]:
    """(host, port) of tcp://host:port. Raises TransportError: that is no such address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TransportError(f"{url!r} in the log is no address of a part server: {error}.") from error
    if parts.scheme != "tcp" or not host or not port:
        raise TransportError(f"{url!r} in the log is no address of a part server: expected tcp://host:port.")
    return host, port


def _own_address(bind: str) -> str:
    """This machine's address on its way to others; its name if it has no way out."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_FAR[family], 9))
        except OSError:
            return socket.gethostname()
        address: str = probe.getsockname()[0]
        return address
