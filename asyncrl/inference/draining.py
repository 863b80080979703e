"""Let a server run empty: its requests are answered, whole if that is soon enough, else as far as they are.

Nobody sends it new ones by then: its state says so. What is not answered in time is cut when its life ends, and its
episodes go on elsewhere from their tokens.
"""

import logging
import time

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused
from weightsync.orders import Order

IDLE_POLL_S = 0.05
CALM_S = 0.3
"""A server counts as empty after it was so for so long: who sent a request before it read of the draining is late."""

log = logging.getLogger(__name__)


class Ordered(Exception):
    """A life ends because an operator asked for it."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.order = order


async def answered(client: ServerClient) -> None:
    """Return when a server has answered what it was told to cut, between two of its steps. The caller sets a deadline.

    Raises:
        ServerError: it does not say what it has.
    """
    while (loads := await client.loads()).num_running + loads.num_waiting:
        await waits.pause("host waits for the answers that its server cuts", IDLE_POLL_S)


async def run_empty(client: ServerClient, name: str, within_s: float) -> bool:
    """Return when no request is at the server any more, or `within_s` seconds have passed; whether it is empty.

    A server that does not say what it has is given the time, and one that fails is not waited for.
    """
    deadline_s = time.monotonic() + within_s
    calm_since_s: float | None = None
    while (now_s := time.monotonic()) < deadline_s:
        try:
            loads = await client.loads(max(0.1, deadline_s - now_s))
        except (RequestRefused, MalformedAnswer):
            calm_since_s = None  # it does not say
        except ServerError as error:
            log.warning("%s does not run empty: %s", name, error)
            return False
        else:
            if loads.num_running + loads.num_waiting:
                calm_since_s = None
            elif calm_since_s is None:
                calm_since_s = now_s
            elif now_s - calm_since_s >= min(CALM_S, within_s / 2):
                return True
        await waits.pause("host waits for its server to run empty", IDLE_POLL_S)
    return False
