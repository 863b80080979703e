"""Which address of this machine a server listens on, and the socket that is bound to it."""

import socket
from ipaddress import ip_address, ip_network

from asyncrl.errors import PreflightError


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet; port 0: a free one. Raises OSError: it cannot be bound."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    # By its protocol asyncio knows a socket for which Nagle's algorithm is to be off. With it on, a reply whose
    # head and body are sent apart waits 40 ms for the client's delayed acknowledgement between the two.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def own_address(host: str) -> str:
    """`host` itself, or, if it is a network like 10.0.0.0/16, this machine's address in it.

    Raises:
        PreflightError: this machine has no address there.
    """
    if "/" not in host:
        return host
    network = ip_network(host)
    towards = str(network[1 if network.num_addresses > 1 else 0])
    family = socket.AF_INET6 if network.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # finds the way and sends nothing
            found = str(probe.getsockname()[0])
        except OSError as error:
            found = f"none ({error})"
    if found.startswith("none") or ip_address(found) not in network:
        raise PreflightError(
            f"inference.host = {host}: {socket.gethostname()} has no address in that network, its way there starts at "
            f"{found}. Give the network that joins the machines of servers and workers."
        )
    return found
