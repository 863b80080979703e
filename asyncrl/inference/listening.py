"""Which address of this machine a server listens on, where the configuration names a network of many machines."""

import socket
from ipaddress import ip_address, ip_network

from asyncrl.errors import PreflightError


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
