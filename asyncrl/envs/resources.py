"""What all episodes of a worker share: made when the first one asks for it, closed once, with the worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, cast

log = logging.getLogger(__name__)


class Shared(Protocol):
    """Something to close."""

    async def close(self) -> None:
        """Give back what it holds. Called once."""
        ...


T = TypeVar("T", bound=Shared)


class Resources:
    """Things by name. Use within one event loop."""

    def __init__(self) -> None:
        self._made: dict[str, Shared] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closed = False

    async def get(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of that name; `make` makes it if there is none. What `make` raises is raised here, and the next one
        who asks tries again.

        Raises:
            RuntimeError: they are closed: an episode outlived its worker.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            if self._closed:
                raise RuntimeError(f"{name} was asked for after the worker's resources were closed")
            if name not in self._made:
                made = await make()
                if self._closed:  # meanwhile: nobody would close it
                    await made.close()
                    raise RuntimeError(f"{name} was made while the worker's resources were closed")
                self._made[name] = made
            return cast(T, self._made[name])

    async def drop(self, name: str, thing: Shared) -> None:
        """Close a thing that broke, so that the next one who asks has another made. Does nothing if that was done."""
        if self._made.get(name) is thing:
            del self._made[name]
            await _close(name, thing)

    async def close(self) -> None:
        """Close all, the last one made first; what fails to close is logged. Later calls do nothing."""
        self._closed = True
        while self._made:
            await _close(*self._made.popitem())


async def _close(name: str, thing: Shared) -> None:
    try:
        await thing.close()
    except Exception:
        log.warning("%s was not closed", name, exc_info=True)
