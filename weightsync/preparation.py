"""A ticket made ready in a thread while the engine samples, so that its pause has little left to do.

What needs no pause: reading the ticket's parts, checking and decoding them, reading the words that will change and
working out the digest of the result, and reading a share of all words again. Nothing is written, and nothing may write
to the weights meanwhile but the loader, which ends the thread first. What is made ready is a shortcut: without it, or
where it met an error, the loader does the same within the pause and says what is wrong.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weightsync.engine_runs import Foreseen
from weightsync.engine_weights import EngineWeights
from weightsync.layout import Bucket
from weightsync.ticket import Staged, Ticket, read_parts, read_ticket
from weightsync.versions import label

Buckets = tuple[Bucket, ...]
Held = tuple[str, int | None, int | None]
"""Layout, version and digest."""

PREPARE = "@weightsync/prepare"
"""The name by which a host asks a model's `get_weights_by_name` to begin, and whether it is done."""

(READY, GOING_ON, NOTHING) = range(3)
"""Answers: the ticket is ready; it is being made ready; there is nothing that can be done ahead."""

_JOIN_S = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A ticket that is ready.

    Attributes:
        staged: its parts, checked.
        foreseen: what adding them will do; None: that is worked out in the pause.
        damaged: the tensor in which a word changed behind the loader's back; None: none was found.
    """

    ticket: Ticket
    staged: list[Staged]
    foreseen: Foreseen | None
    damaged: str | None


class Preparation:
    """Of one engine rank. Its methods are called by the thread that loads."""

    def __init__(self) -> None:
        self._ticket: Ticket | None = None
        self._thread: threading.Thread | None = None
        self._ready: Prepared | None = None

    def begin(
        self, directory: Path, held: Held, weights: EngineWeights | None, buckets: Callable[[Path, str], Buckets]
    ) -> int:
        """Make the staged delta ready, unless that was begun already; READY, GOING_ON, or NOTHING. Never raises.

        Args:
            directory: the stage directory.
            held: what the engine holds.
            weights: behind the map of that layout; None: there is no map yet.
            buckets: of a plan in the directory; called here.
        """
        if self._thread is not None and self._thread.is_alive():
            return GOING_ON  # if it is of another ticket, that one ends first
        try:
            ticket = read_ticket(directory)
            if ticket == self._ticket:
                return NOTHING if self._ready is None else READY
            self._ticket, self._ready = ticket, None
            fits = ticket.kind == "delta" and (ticket.layout, ticket.base, ticket.base_digest) == held
            if weights is None or not fits:
                return NOTHING
            arguments = (directory, ticket, weights, buckets(directory, ticket.plan))
            self._thread = threading.Thread(target=self._run, args=arguments, name="weightsync-prepare", daemon=True)
            self._thread.start()
            return GOING_ON
        except Exception as error:  # it must not reach the server; whatever it is, the pause meets it again
            logger.info("weightsync: nothing was made ready: %r", error)
            return NOTHING

    def take(self, ticket: Ticket) -> Prepared | None:
        """What was made ready, if it was this ticket. From here on no thread reads the weights.

        Raises:
            RuntimeError: the thread does not end.
        """
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                raise RuntimeError(f"making a ticket ready has not ended after {_JOIN_S:g} s more")
        ready, self._thread, self._ready, self._ticket = self._ready, None, None, None
        return ready if ready is not None and ready.ticket == ticket else None

    def _run(self, directory: Path, ticket: Ticket, weights: EngineWeights, buckets: Buckets) -> None:
        try:
            staged = read_parts(directory, ticket, buckets)
            self._ready = Prepared(ticket, staged, weights.foresee(staged), weights.spot_check())
        except Exception as error:  # whatever it is: the pause meets it again, and answers it
            logger.info("weightsync: %s was not made ready: %r", label(ticket.target), error)
