"""One call on its way in a thread of its own, while the loop goes on."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Flight(Generic[T]):
    """A call that has begun. What it raises is raised by `landed`, so whoever starts a flight waits for it, too."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        """Begin.

        Args:
            name: of the thread.
            call: runs once.
        """
        self._future: Future[T] = Future()
        self._call, self._began_s = call, time.monotonic()
        self._ended_s: float | None = None
        # A daemon: a trainer that ends with an error does not wait for a transport that hangs.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has returned or raised."""
        return self._future.done()

    @property
    def seconds(self) -> float:
        """That it took, or has taken so far."""
        return (self._ended_s or time.monotonic()) - self._began_s

    @property
    def failure(self) -> BaseException | None:
        """What it raised, if it is over."""
        return self._future.exception() if self._future.done() else None

    def wait(self, deadline_s: float) -> bool:
        """Block until it is over, `deadline_s` seconds at most; whether it is."""
        return bool(wait([self._future], max(deadline_s, 0.0)).done)

    def landed(self) -> T | None:
        """What the call returned, or None while it runs. Raises what the call raised."""
        return self._future.result() if self._future.done() else None

    def _run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:  # it is the loop's to judge, in whose thread it is raised again
            self._ended_s = time.monotonic()
            self._future.set_exception(error)
        else:
            self._ended_s = time.monotonic()
            self._future.set_result(result)
