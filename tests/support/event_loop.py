"""Run a test that is a coroutine function in an event loop of its own."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorator; fixtures are passed on."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
