"""Calls that block for as long as they like, waited for until a deadline: each in a thread that may be left behind."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from weightsync.transport.base import Deadline

T = TypeVar("T")


class BoundedCalls:
    """At most `most` calls run at once. Thread-safe.

    A call that outlives its deadline cannot be stopped; it keeps its place until it returns, so that a dead store costs
    a bounded number of threads and of bytes. The threads are daemons: a process that ends waits for none of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._places = threading.BoundedSemaphore(most)

    def run(self, call: Callable[[], T], deadline: Deadline) -> T:
        """What `call` returns or raises.

        It must not write to memory of its caller's, who may use that again after the deadline.

        Raises:
            DeadlineExceeded: there was no place, or no answer, in time.
        """
        deadline.check()
        if not self._places.acquire(timeout=max(0.0, deadline.left())):
            raise deadline.exceeded(f"All {self._most} calls that may run at once wait for the store, which is silent.")
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # it is the caller's, who waits in another thread
                answer.set_exception(error)
            finally:
                self._places.release()

        try:
            threading.Thread(target=work, name="weightsync-store", daemon=True).start()
        except RuntimeError:
            self._places.release()
            raise
        try:
            return answer.result(timeout=max(0.0, deadline.left()))
        except NotYet:
            if answer.done():  # the call itself said so
                raise
            raise deadline.exceeded("The store has not answered.") from None
