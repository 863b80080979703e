"""Turn Ctrl-C and SIGTERM into an event; a second one ends the command at once."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger(__name__)
GRACEFUL = (signal.SIGINT, signal.SIGTERM)


def stop_event(at_once: Callable[[], None] = lambda: None) -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets. The second calls `at_once` and leaves with 128 + its number.

    Must be called inside the running event loop.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(number: signal.Signals) -> None:
        if stop.is_set():
            at_once()
            os._exit(128 + number)
        log.warning("%s: stopping; once more to leave at once", number.name)
        stop.set()

    for number in GRACEFUL:
        loop.add_signal_handler(number, handle, number)
    return stop
