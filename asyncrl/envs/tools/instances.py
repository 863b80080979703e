"""The instances of tools that one episode has: made before their first call, released once, whatever happens."""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import TypeVar
from uuid import uuid4

from asyncrl import waits
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import Tool

GRACE_S = 1.0  # that a cancelled call gets to end; one that does not is left to itself

log = logging.getLogger(__name__)
T = TypeVar("T")


class Overdue(TimeoutError):
    """A call was not over at its deadline."""


class Releases:
    """Releases that go on after their episode: of all episodes of a worker, waited for when it ends."""

    def __init__(self, counts: Counter[str]) -> None:
        """counts: gets tool_releases_failed."""
        self.counts = counts
        self._going: set[asyncio.Task[None]] = set()

    def begin(self, release: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a release to its end, whoever is cancelled meanwhile."""
        task = asyncio.create_task(release)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return task

    async def run(self, what: str, timeout_s: float, release: Coroutine[object, object, None]) -> None:
        """Wait for a release, see finish, that goes on if the waiting is cancelled."""
        await asyncio.wait([self.begin(self.finish(what, timeout_s, release))])

    async def finish(self, what: str, timeout_s: float, release: Coroutine[object, object, None]) -> None:
        """Await a release for `timeout_s` seconds at most; one that fails is counted and logged, and not repeated."""
        try:
            await within(timeout_s, release)
        except Exception:
            self.counts["tool_releases_failed"] += 1
            log.warning("%s was not released", what, exc_info=True)

    async def drain(self, deadline_s: float) -> None:
        """Wait until all are done, or the deadline has passed, which is logged."""
        if not self._going:
            return
        with waits.timed("worker waits for tools to be released", lambda: f"{len(self._going)} instances"):
            _, late = await asyncio.wait(set(self._going), timeout=deadline_s)
        if late:
            log.warning("%d instances of tools were not released within %g s", len(late), deadline_s)


class Instances:
    """Instances by tool. `started` has the names of tools that were asked for anything."""

    def __init__(
        self, tools: Mapping[str, Tool], kwargs: Mapping[str, Mapping[str, Json]], releases: Releases, timeout_s: float
    ) -> None:
        """
        Args:
            kwargs: create's, by tool.
            timeout_s: seconds that create and release may take, each.
        """
        self._tools, self._kwargs, self._releases, self._timeout_s = tools, kwargs, releases, timeout_s
        self._made: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._episode = uuid4().hex
        self._is_closed = False
        self.started: set[str] = set()

    async def of(self, name: str) -> str:
        """The id of the tool's instance, which is made now if there is none.

        Raises:
            RuntimeError: create raised, which is its cause. The next one who asks has another instance made.
        """
        if self._is_closed:
            raise RuntimeError(f"tool {name} was asked for after its episode had ended")
        if name not in self._made:
            instance_id = f"{self._episode}.{uuid4().hex[:8]}"
            self.started.add(name)
            create = self._tools[name].create(instance_id, **self._kwargs.get(name, {}))
            self._made[name] = (instance_id, asyncio.create_task(within(self._timeout_s, create)))
        instance_id, making = self._made[name]
        if not making.done():
            await asyncio.wait({making})  # a call that is cancelled here leaves it to the others
        if _is_made(making):
            return instance_id
        if self._made.get(name) == (instance_id, making):
            del self._made[name]
            self._releases.begin(self._release(name, instance_id, making))
        raise RuntimeError(f"tool {name} has no instance") from None if making.cancelled() else making.exception()

    def ids(self) -> dict[str, str]:
        """Ids of the instances that are made, by tool."""
        return {name: instance_id for name, (instance_id, making) in self._made.items() if _is_made(making)}

    async def close(self) -> None:
        """Release them all. Whoever cancels this does not cancel the releases; later calls do nothing."""
        self._is_closed = True
        made, self._made = self._made, {}
        releases = [self._releases.begin(self._release(name, *of)) for name, of in made.items()]
        if releases:
            await asyncio.wait(releases)

    async def _release(self, name: str, instance_id: str, making: asyncio.Task[None]) -> None:
        try:
            if not making.done():
                making.cancel()
                await asyncio.wait({making}, timeout=2 * GRACE_S)
            _is_made(making)  # what create raised was told, or nobody asked
        finally:  # once, also where this task is cancelled before the tool has answered
            await self._releases.finish(f"tool {name}", self._timeout_s, self._tools[name].release(instance_id))


def _is_made(making: "asyncio.Task[None]") -> bool:
    return making.done() and not making.cancelled() and making.exception() is None


async def within(timeout_s: float, call: Coroutine[object, object, T]) -> T:
    """Await a call for `timeout_s` seconds at most. One that is not over then is cancelled, and left to itself if it
    does not end: nobody waits for a tool that ignores its deadline.

    Raises:
        Overdue: it was not over.
        RuntimeError: it ended the process, or cancelled itself, which would end others with it.
    """
    task = asyncio.create_task(_without_exit(call))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _end(task)
        raise
    if not done:
        await _end(task)
        raise Overdue(f"not over after {timeout_s:g} s")
    if task.cancelled():
        raise RuntimeError("it cancelled itself")
    return task.result()


async def _without_exit(call: Coroutine[object, object, T]) -> T:
    try:
        return await call
    except SystemExit as error:  # a task that raises it ends the process, with all other episodes
        raise RuntimeError(f"it called exit({error.code!r})") from error


async def _end(task: "asyncio.Task[T]") -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_S)
    if not task.done():
        log.warning("a tool goes on after its deadline: %r", task.get_coro())
        _left_alone.add(task)
        task.add_done_callback(_left_alone.discard)
    elif not task.cancelled() and task.exception() is not None:
        log.info("a tool that was cancelled ended with %r", task.exception())


_left_alone: set["asyncio.Task[object]"] = set()  # the event loop keeps weak references only
