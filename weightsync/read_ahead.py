"""Parts fetched before they are used, in order, within a budget of bytes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Generic, TypeVar

from weightsync.transport.base import Deadline

T = TypeVar("T")

_MOST_AHEAD = 64  # of small parts: more would only make the look at what is held longer
_GRACE_S = 1.0  # a transport says best itself why it is late; this is for one that says nothing


@dataclass(frozen=True)
class Fetch(Generic[T]):
    """One thing to bring: its name for people, its bytes on the way, and the call, which runs in a thread."""

    name: str
    num_bytes: int
    call: Callable[[], T]


class ReadAhead(Generic[T]):
    """Results of fetches, one after the other. For one thread; close it."""

    def __init__(
        self, fetches: Iterable[Fetch[T]], size: Callable[[T], int], *, threads: int, budget: int, deadline: Deadline
    ) -> None:
        """
        Args:
            fetches: in the order in which they are wanted.
            size: bytes that a result holds.
            threads: calls at once.
            budget: bytes that what is on its way, waits or is in use may hold together; a fetch larger than all of it
                goes alone.
            deadline: of all of them.
        """
        self._fetches: Iterator[Fetch[T]] = iter(fetches)
        self._size, self._budget, self._deadline = size, budget, deadline
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="weightsync-read")
        self._ahead: deque[tuple[Fetch[T], Future[T]]] = deque()
        self._next = next(self._fetches, None)
        self._used = 0

    def take(self) -> T:
        """The next result; the one before it is no longer in use.

        Raises:
            DeadlineExceeded: it did not come in time.
            Whatever its call raised.
        """
        self._used = 0
        self._fill()
        fetch, future = self._ahead.popleft()
        try:
            result = future.result(timeout=max(0.0, self._deadline.left()) + _GRACE_S)
        except NotYet:
            if future.done():  # the call itself said so
                raise
            raise self._deadline.exceeded(f"{fetch.name} is still on its way: the transport does not answer.") from None
        self._used = self._size(result)
        self._fill()
        return result

    def close(self) -> None:
        """Whatever is on its way is not waited for; its transport ends it at its deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fill(self) -> None:
        held = self._used + sum(
            self._size(future.result()) if future.done() and future.exception() is None else fetch.num_bytes
            for fetch, future in self._ahead
        )
        while self._next is not None and len(self._ahead) < _MOST_AHEAD:
            if (held or self._ahead) and held + self._next.num_bytes > self._budget:
                return
            self._ahead.append((self._next, self._pool.submit(self._next.call)))
            held += self._next.num_bytes
            self._next = next(self._fetches, None)
