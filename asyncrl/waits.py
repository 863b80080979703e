"""The one way to wait: a name, a reason that is shown to the user, and a deadline.

Seconds spent per name are metrics (`timing_s/wait/<name>`), the first thing to read when a run is slow. A wait is woken
by an event (`wake`) and re-checks seldom in case one was missed. Blocking calls of the two bridges run in threads here,
so nothing else in asyncrl calls asyncio.sleep or asyncio.to_thread.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from asyncrl.errors import WaitTimeout

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")

REMIND_S = 60.0  # a wait that lasts says why once a minute, so that a log alone explains a stalled run
MAX_THREADS = 64  # a worker renews and reserves for at most this many claims at once; more would queue, not fail

_lock = threading.Lock()
_seconds: dict[str, float] = defaultdict(float)
_active: dict[int, "_Going"] = {}
_threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="asyncrl-wait")


Watch = Callable[[str], AbstractContextManager[object]]
_watch: ContextVar["tuple[asyncio.Task[object] | None, Watch] | None"] = ContextVar("watch", default=None)


@dataclass(frozen=True)
class ActiveWait:
    """A wait that is going on: since when (seconds of time.monotonic) and its reason as of now."""

    name: str
    since_s: float
    why: str


@dataclass(frozen=True)
class _Going:
    name: str
    since_s: float
    why: Callable[[], str]


def seconds() -> dict[str, float]:
    """Seconds spent in this process by wait name, waits that are still going on included."""
    now = time.monotonic()
    with _lock:
        spent = defaultdict(float, _seconds)
        for wait in _active.values():
            spent[wait.name] += now - wait.since_s
    return dict(spent)


def active() -> list[ActiveWait]:
    """The waits that are going on now, oldest first; what a progress view shows."""
    with _lock:
        going = sorted(_active.values(), key=lambda wait: wait.since_s)
    return [ActiveWait(wait.name, wait.since_s, wait.why()) for wait in going]


@contextmanager
def timed(name: str, why: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Count the seconds of the block under `name` and show it as an active wait."""
    wait, watching = _Going(name, time.monotonic(), why), _watch.get()
    with _lock:
        _active[id(wait)] = wait
    try:
        with watching[1](name) if watching is not None and is_current(watching[0]) else nullcontext():
            yield
    finally:
        with _lock:
            del _active[id(wait)]
            _seconds[name] += time.monotonic() - wait.since_s


def watch_own(watch: Watch) -> None:
    """Enter `watch(name)` around each wait of the task that calls this, and of no other: waits of one task nest."""
    _watch.set((asyncio.current_task(), watch))


def is_current(task: "asyncio.Task[object] | None") -> bool:
    """Whether `task` is the one that runs here; threads run none."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


async def blocking(name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call of a bridge in a thread; its seconds count under `name`. Raises what the call raises."""
    with timed(name):
        return await in_thread(call, *args, **kwargs)


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a thread, uncounted: for calls that are work rather than waiting."""
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: call(*args, **kwargs))


async def until(
    name: str,
    attempt: Callable[[], T | None],
    *,
    why: Callable[[], str],
    wake: Callable[[float], object] | None = None,
    deadline_s: float,
    recheck_s: float = 1.0,
) -> T:
    """Try until `attempt` gives something other than None.

    Args:
        name: what is waited for, in words; the key of the seconds.
        attempt: blocking, runs in a thread; None means not yet, an exception ends the wait.
        why: the reason as of now, asked for the reminder each minute and for the error.
        wake: blocks up to the given seconds, or until something changed; None re-checks every `recheck_s`.
        deadline_s: seconds after which WaitTimeout is raised.
        recheck_s: longest pause between two attempts, since an event may be missed.
    Raises:
        WaitTimeout: the deadline passed.
    """
    start = reminded = time.monotonic()
    result = await in_thread(attempt)
    if result is not None:
        return result
    with timed(name, why):
        while True:
            now = time.monotonic()
            if now - start >= deadline_s:
                raise WaitTimeout(name, now - start, deadline_s, why())
            if now - reminded >= REMIND_S:
                log.warning("%s: %.0f s so far. %s", name, now - start, why())
                reminded = now
            left_s = min(recheck_s, deadline_s - (now - start))
            if wake is None:
                await asyncio.sleep(left_s)
            else:
                await in_thread(wake, left_s)
            result = await in_thread(attempt)
            if result is not None:
                return result


def doubling(first_s: float, longest_s: float) -> Iterator[float]:
    """Seconds of one pause after the other, each twice the one before, up to `longest_s`. It does not end."""
    while True:
        yield first_s
        first_s = min(2 * first_s, longest_s)


async def pause(name: str, pause_s: float, why: Callable[[], str] = lambda: "") -> None:
    """Do nothing for `pause_s` seconds, counted under `name`: a back-off or the beat of a heartbeat."""
    with timed(name, why):
        await asyncio.sleep(pause_s)
