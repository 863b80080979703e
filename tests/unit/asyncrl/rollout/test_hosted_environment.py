"""What a hosted environment is taken to have besides: the same as isinstance says."""

from collections.abc import Callable

import pytest

from asyncrl.envs.base import Closable, Environment, Resumable, ShowsTools, Staged, StepResult
from asyncrl.rollout.hosted_environment import keeps


class Plain:
    async def reset(self, row: object, *, seed: int) -> tuple[()]:
        return ()

    async def step(self, text: str, finish_reason: str) -> StepResult:
        raise AssertionError("not asked")


class Closing(Plain):
    async def close(self) -> None: ...


class HalfResumable(Plain):
    def snapshot(self) -> None: ...


class WholeResumable(HalfResumable):
    async def restore(self, row: object, *, seed: int, state: object) -> tuple[()]:
        return ()


class WithTools(Closing):
    tools = ()

    def watch(self, enter: Callable[[str], None]) -> None: ...


class ToolsOfItsOwn(Plain):
    def __init__(self) -> None:
        self.tools = ({"name": "own"},)


class ClosesNoMore(Closing):
    close = None  # type: ignore[assignment]  # how a class takes back what it inherits


@pytest.mark.parametrize("protocol", [Closable, Resumable, ShowsTools, Staged])
@pytest.mark.parametrize(
    "made", [Plain, Closing, HalfResumable, WholeResumable, WithTools, ToolsOfItsOwn, ClosesNoMore]
)
def test_what_an_environment_keeps_is_what_isinstance_says(made: Callable[[], Environment], protocol: type) -> None:
    environment = made()
    assert keeps(environment, protocol) == isinstance(environment, protocol)
