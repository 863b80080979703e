"""The requests of one episode, as a fleet sees them."""

from dataclasses import dataclass

from asyncrl.inference.member import Member
from asyncrl.inference.streaming import Watch


@dataclass(slots=True)
class Session:
    """Keeps the requests of one episode on one server while that is possible, for its prefix cache.

    Attributes:
        server: where the last request was sent.
        in_flight: the server and the id of the request that is there now; None: nothing is to be had back.
        only: name of the one server that they may go to; None: any.
        watch: who sees the tokens of the next answers as they come; None: nobody does before they are whole.
    """

    server: str | None = None
    in_flight: tuple[Member, str] | None = None
    only: str | None = None
    watch: Watch | None = None
