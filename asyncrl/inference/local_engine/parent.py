"""Ends with the process that started us, however it ends: a thread that blocks on the parent's own file descriptor."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

RECHECK_S = 1.0
"""Seconds between two looks where the system has no pidfd."""


def watch_parent(pid: int, on_end: Callable[[], object]) -> threading.Thread:
    """Calls `on_end` once, from a thread, when process `pid` has ended.

    prctl's death signal would not do: it fires when the *thread* that started us ends.
    """
    thread = threading.Thread(target=_watch, args=(pid, on_end), name="watch the parent", daemon=True)
    thread.start()
    return thread


def _watch(pid: int, on_end: Callable[[], object]) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        on_end()
        return
    except (AttributeError, OSError):  # no such call here
        never = threading.Event()
        while _alive(pid):
            never.wait(RECHECK_S)
        on_end()
        return
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)
    on_end()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
