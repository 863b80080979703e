"""The environment of one episode, which may be anybody's code: what it raises fails the group, not the worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import TypeVar, cast

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.base import (
    Closable,
    Environment,
    Message,
    Resumable,
    ShowsTools,
    Staged,
    StepResult,
)
from asyncrl.errors import AsyncrlError
from asyncrl.rollout.agent_states import AgentState, EpisodeState
from asyncrl.rollout.turns import EpisodeFailed
from buffer.json_safe import json_safe_map

CLOSE_TIMEOUT_S = 60.0  # of an episode's slot that an environment may hold once its episode is over
WAIT_NAME = "episode closes its environment"

log = logging.getLogger(__name__)
T = TypeVar("T")


class HostedEnvironment:
    """One environment, from its making to its close.

    Raises:
        EpisodeFailed: of every method but close, when the environment raises. Errors for the user rise as they are.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._environment = _guarded(make)
        self._resumable = cast("Resumable", self._environment) if keeps(self._environment, Resumable) else None

    def watch(self, state: EpisodeState) -> None:
        """Have it move the state of its episode, if it is Staged."""
        if keeps(self._environment, Staged):
            staged = cast("Staged", self._environment)
            _guarded(lambda: staged.watch(lambda stage: state.enter(AgentState(stage))))

    async def reset(self, row: PromptRow, seed: int) -> tuple[Message, ...]:
        """The first messages."""
        return await _ask(self._environment.reset(row, seed=seed))

    async def restore(
        self, row: PromptRow, seed: int, state: Mapping[str, object] | None, *, is_fresh: bool
    ) -> tuple[Message, ...] | None:
        """The first messages of the environment that is now as it was when an episode was parked; None: it cannot be.

        Args:
            state: its snapshot from then.
            is_fresh: no turn was answered then: after a reset with the same seed it is where it was.
        """
        if state is None:
            return await self.reset(row, seed) if is_fresh else None
        if self._resumable is None:
            return None
        try:
            return await self._resumable.restore(row, seed=seed, state=state)
        except AsyncrlError:
            raise
        except Exception:
            # What the snapshot stands for may have died with the worker that took it.
            log.warning("the environment of a parked episode of row %d was not restored", row.index, exc_info=True)
            return None

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """What it says to a turn."""
        return await _ask(self._environment.step(text, finish_reason))

    def snapshot(self) -> Mapping[str, object] | None:
        """What the next owner needs; None: nobody can go on from here."""
        if self._resumable is None:
            return None
        state = _guarded(self._resumable.snapshot)
        return None if state is None else _guarded(lambda: json_safe_map("Environment.snapshot()", state))

    def tools(self, row: PromptRow) -> tuple[Mapping[str, Json], ...]:
        """Schemas of the tools that its prompt shows."""
        shows = keeps(self._environment, ShowsTools)
        return cast("ShowsTools", self._environment).tools if shows else row.tools

    async def close(self) -> None:
        """Have it give back what it holds; what goes wrong is logged."""
        if not keeps(self._environment, Closable):
            return
        try:
            with waits.timed(WAIT_NAME, lambda: type(self._environment).__name__):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await cast("Closable", self._environment).close()
        except Exception:
            log.warning("an environment was not closed", exc_info=True)


def keeps(environment: Environment, protocol: type) -> bool:
    """What isinstance says, which looks for a protocol's members anew each time: that takes longer than most steps."""
    return all(getattr(environment, name, None) is not None for name in _members(protocol))


@cache
def _members(protocol: type) -> tuple[str, ...]:
    return tuple(name for name in vars(protocol) if not name.startswith("_"))


async def _ask(call: Awaitable[T]) -> T:
    try:
        return await call
    except AsyncrlError:
        raise
    except Exception as error:
        raise _failure(error) from error


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except AsyncrlError:
        raise
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception) -> EpisodeFailed:
    log.warning("the environment failed", exc_info=True)
    return EpisodeFailed("environment_failed", f"{type(error).__name__}: {error}")
