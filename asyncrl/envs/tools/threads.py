"""Threads for blocking calls, bounded in number; one that does not come back holds up nobody's exit."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

from asyncrl import waits
from asyncrl.envs.tools.base import ToolError

T = TypeVar("T")
WAIT = "tool call waits for a free thread"


class CallThreads:
    """At most `count` calls at once, each in a thread of its own.

    The threads are daemons: Python waits for those of a ThreadPoolExecutor at its end, and so for a call that hangs.
    A call that was given up keeps its place until it returns, because nothing can end a thread.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._given_up = 0

    async def run(self, call: Callable[[], T]) -> T:
        """What the call returns or raises.

        Raises:
            ToolError: every thread is held by a call that was given up, so that waiting for one would be vain.
        """
        if self._given_up >= self._count:
            raise ToolError(
                f"all {self._count} threads for functions are held by earlier calls that passed their deadline"
            )
        with waits.timed(WAIT, lambda: f"all {self._count} of rollout.tools.function_threads are busy"):
            await self._free.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=lambda: self._work(context, call, loop, outcome), name="tool function", daemon=True
        )
        thread.start()
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            self._given_up += 1
            outcome.add_done_callback(self._came_back)
            raise

    def _work(
        self,
        context: contextvars.Context,
        call: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        outcome: "asyncio.Future[T]",
    ) -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = context.run(call)
        except BaseException as error:  # the caller's to handle, SystemExit of a function included
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            if isinstance(error, StopIteration):  # a future refuses it
                failure = RuntimeError(f"StopIteration: {error}")
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._finish, outcome, result, failure)
            except RuntimeError:  # closed since: nobody waits any more
                return

    def _finish(self, outcome: "asyncio.Future[T]", result: T | None, failure: BaseException | None) -> None:
        self._free.release()
        if failure is None:
            outcome.set_result(result)  # type: ignore[arg-type]  # what the call returned, None included
        else:
            outcome.set_exception(failure)

    def _came_back(self, outcome: "asyncio.Future[T]") -> None:
        self._given_up -= 1
        if not outcome.cancelled():
            outcome.exception()  # seen: it was given up, and is nobody's any more
