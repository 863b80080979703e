"""Turn Ctrl-C and SIGTERM into an event; a second one hurries, or ends the command at once. SIGUSR1 is a preemption
notice."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

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

    Must be called in the main thread, inside the running event loop. Once the loop is closed a signal says nothing new:
    the command is leaving.

    Args:
        hurry: set by the second signal, which makes the third the one that leaves; and, together with the stop, by a
            preemption notice, after which the second signal leaves.
        heeds_preemption: False: a notice is for others. A scheduler may send it to all processes of a job, and those
            that others still need end when these say so.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    num_asked = 0

    def handle(number: signal.Signals) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:  # a notice does not count: whoever passes it on asks to stop too, and neither is impatient
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

    def hear(call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
        def heard(_number: int, _frame: FrameType | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(call)

        return heard

    # Not the loop's own handlers: at its end it puts the system's in their place, and a signal that came then would
    # end the command before it has let go of what it holds, its Redis for one.
    for number in GRACEFUL:
        signal.signal(number, hear(partial(handle, number)))
    signal.signal(PREEMPTED, hear(preempted) if heeds_preemption else signal.SIG_IGN)
    return stop


@contextmanager
def deaf() -> Iterator[None]:
    """Signals that ask to stop are not heard during the block, which is short and does what they ask for. Only in the
    main thread, where Python hears them; elsewhere it changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in GRACEFUL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
