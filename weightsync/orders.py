"""What an operator asks of the servers of a run: to leave, to be replaced, to be adopted.

No I/O; the log stores these. Hosts obey the orders for their server, serve-rollout the adoptions of its machine.
"""

from dataclasses import dataclass
from typing import Literal

OrderKind = Literal["leave", "replace"]
"""leave: it takes no request any more, and ends, until the order is taken back. replace: then it gets a new life."""
ORDER_KINDS: tuple[OrderKind, ...] = ("leave", "replace")


@dataclass(frozen=True)
class Order:
    """What one server is to do.

    Attributes:
        within_s: seconds that its requests in flight get to be answered whole; then they are answered as far as they
            are, and their episodes go on elsewhere. 0: at once.
        nonce: of this order, so that what obeys it takes back no later one.
    """

    kind: OrderKind
    within_s: float
    nonce: str


@dataclass(frozen=True)
class Adoption:
    """A server that somebody else runs and that joins the run: the serve-rollout of its machine starts a host for it.

    Attributes:
        url: where it answers.
        machine: host name of the machine that it runs on: the two share a stage directory.
    """

    url: str
    machine: str
