"""Turn Ctrl-C and SIGTERM into an event; a second one hurries, or ends the command at once. SIGUSR1 is a preemption
notice."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger(__name__)
GRACEFUL = (signal.SIGINT, signal.SIGTERM)
PREEMPTED = signal.SIGUSR1
"""What a scheduler is told to send ahead of a preemption, for example by `sbatch --signal=USR1@60`."""


def stop_event(
    at_once: Callable[[], None] = lambda: None,
    *,
    hurry: asyncio.Event | None = None,
    heeds_preemption: bool = True,
) -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets. The second calls `at_once` and leaves with 128 + its number.

    Must be called inside the running event loop.

    Args:
        hurry: set by the second signal, which makes the third the one that leaves; and, together with the stop, by a
            preemption notice.
        heeds_preemption: False: a notice is for others. A scheduler may send it to all processes of a job, and those
            that others still need end when these say so.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(number: signal.Signals) -> None:
        if not stop.is_set():
            log.warning("%s: stopping; once more to %s", number.name, "leave at once" if hurry is None else "hurry")
            stop.set()
        elif hurry is not None and not hurry.is_set():
            log.warning("%s: stopping in a hurry; once more to leave at once", number.name)
            hurry.set()
        else:
            at_once()
            os._exit(128 + number)

    def preempted() -> None:
        log.warning("%s: stopping in a hurry, a preemption is announced", PREEMPTED.name)
        stop.set()
        if hurry is not None:
            hurry.set()

    for number in GRACEFUL:
        loop.add_signal_handler(number, handle, number)
    if heeds_preemption:
        loop.add_signal_handler(PREEMPTED, preempted)
    else:
        signal.signal(PREEMPTED, signal.SIG_IGN)
    return stop
