"""Where a part server is reached: what a rank says in the log, and what a reader makes of it."""

import socket
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from weightsync.config import TcpConfig
from weightsync.errors import TransportError

_FAR = {4: "192.0.2.1", 6: "2001:db8::1"}  # addresses for documentation: nobody has them


def url_of(config: TcpConfig, port: int) -> str:
    """tcp://host:port of a server that listens on `port` of config.bind.

    Raises:
        TransportError: this machine has no address in the network of config.advertise.
    """
    host, bind = config.advertise, ip_address(config.bind)
    if host is None:
        host = str(bind)
        if bind.is_unspecified:
            host = _own_address(_FAR[bind.version]) or socket.gethostname()
    elif "/" in host:
        host = _own_address_in(host)
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


def _own_address_in(network: str) -> str:
    whole = ip_network(network)
    found = _own_address(str(whole[-1] if whole.num_addresses == 1 else whole[1]))
    if found is None or ip_address(found) not in whole:
        raise TransportError(
            f"weightsync.tcp.advertise = {network!r}: this machine has no address there, it would go by {found}. Give "
            "the network that joins the trainer's and the servers' machines, or null."
        )
    return found


def _own_address(towards: str) -> str | None:
    """This machine's address on its way to another; None if there is no way. Looking for the way sends nothing."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address
