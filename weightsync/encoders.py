"""Buckets encoded by several threads at once, handed over in the order in which they were asked for."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue
from typing import TypeVar

from weightsync.codec import Encoder

T = TypeVar("T")


class Encoders:
    """The encoders of one rank, one per thread; their kernels, hashes and zstd run without Python's lock."""

    def __init__(self, key: bytes | None = None, threads: int = 1) -> None:
        """`key`: as of `Encoder`. `threads`: of one, everything runs in the caller's."""
        self.threads = threads
        self._free: LifoQueue[Encoder] = LifoQueue()
        for _ in range(threads):
            self._free.put(Encoder(key))

    @property
    def most_taken(self) -> int:
        """Calls that `in_order` holds at once: what one more of them reads must lie elsewhere than theirs."""
        return 1 if self.threads == 1 else self.threads + 1

    def in_order(self, calls: Iterable[Callable[[Encoder], T]]) -> Generator[T, None, None]:
        """The results of `calls`, which are taken one after the other in the caller's thread, one more than there are
        threads ahead of the result that is waited for. Close the iterator: what runs then is ended first.

        Raises:
            Whatever a call raised, in its place.
        """
        if self.threads == 1:
            yield from map(self.run, calls)
            return
        ahead: deque[Future[T]] = deque()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="weightsync-encode") as pool:
            try:
                for call in calls:
                    ahead.append(pool.submit(self.run, call))
                    if len(ahead) > self.threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    def run(self, call: Callable[[Encoder], T]) -> T:
        """One call, in this thread, with an encoder that nobody else uses meanwhile."""
        encoder = self._free.get()
        try:
            return call(encoder)
        finally:
            self._free.put(encoder)
