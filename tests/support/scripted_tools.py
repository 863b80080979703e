"""Tools that follow a script, and keep a book of their instances."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer

Act = Callable[[Mapping[str, Json]], Awaitable[Any]]


async def _nothing() -> None:
    return None


class ScriptedTool:
    """A tool whose methods do what they are given.

    created, released: how often, by instance. arguments: of each execute, in the order of their beginning.
    """

    def __init__(
        self,
        name: str = "calc",
        execute: Act | None = None,
        *,
        create: Callable[[], Awaitable[None]] = _nothing,
        release: Callable[[], Awaitable[None]] = _nothing,
        reward: Callable[[], Awaitable[Any]] = _nothing,
        keeps_state: bool = True,
    ) -> None:
        self.name, self.keeps_state = name, keeps_state
        self.schema: Mapping[str, Json] = {"type": "function", "function": {"name": name, "parameters": {}}}
        self.created: Counter[str] = Counter()
        self.released: Counter[str] = Counter()
        self.kwargs: list[Mapping[str, Json]] = []
        self.arguments: list[Mapping[str, Json]] = []
        self.num_running = self.most_running = 0
        self._execute, self._create, self._release, self._reward = execute, create, release, reward

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        self.created[instance_id] += 1
        self.kwargs.append(kwargs)
        await self._create()

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        assert self.created[instance_id] == 1
        assert self.released[instance_id] == 0, "an instance is not used after its release"
        self.arguments.append(arguments)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            answer = ToolAnswer(str(arguments.get("x"))) if self._execute is None else await self._execute(arguments)
        finally:
            self.num_running -= 1
        return answer  # type: ignore[no-any-return]  # a script may answer with anything

    async def calc_reward(self, instance_id: str) -> float | None:
        assert self.released[instance_id] == 0
        return await self._reward()  # type: ignore[no-any-return]

    async def release(self, instance_id: str) -> None:
        self.released[instance_id] += 1
        await self._release()

    def check_released(self) -> None:
        """Every instance that was made was released once."""
        assert self.released == self.created
        assert all(count == 1 for count in self.created.values())


async def never() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def stubborn() -> None:
    """Wait until cancelled twice."""
    with suppress(asyncio.CancelledError):
        await never()
    await never()
