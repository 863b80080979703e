"""What a tool is: it says how it is called, and answers a call with text for the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from asyncrl.data.values import Json


class ToolError(ValueError):
    """A tool cannot do what it was asked for; the text is told to the model, and the call is counted as failed."""


@dataclass(frozen=True)
class ToolAnswer:
    """What a tool says to one call.

    Attributes:
        text: for the model to read.
        reward: what the call itself is worth, if the tool says so; finite.
        metrics: numbers for people, by name.
        is_error: the text says why the call did not succeed, as ToolError would.
    """

    text: str
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_error: bool = False


@runtime_checkable
class Tool(Protocol):
    """One tool, shared by all episodes of a worker. In envs/tools; held to tests/contract/test_tools.py.

    An episode has an instance of its own, made before its first call and released once. Instances are used at the
    same time by different episodes, and calls of one turn run at the same time too, also on one instance. Whatever a
    method raises besides ToolError is told to the model as a failure of the tool and logged; it ends no episode.
    """

    @property
    def name(self) -> str:
        """As the model calls it: that of its schema."""
        ...

    @property
    def schema(self) -> Mapping[str, Json]:
        """OpenAI's function schema: {"type": "function", "function": {"name", "description", "parameters"}}."""
        ...

    @property
    def keeps_state(self) -> bool:
        """Whether a call changes what later calls of the same instance, or its reward, are. If so, an episode that
        another worker goes on with after such a call starts over: the instance is gone with its worker."""
        ...

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Make the instance of an episode.

        Args:
            instance_id: unique among all episodes of the run; what stands before a dot in it, the episode's tools
                have in common.
            kwargs: of the prompt's row, extra_info.tools_kwargs.<name>.create_kwargs (verl's place for it).
        """
        ...

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """Answer one call. It may be cancelled at its deadline, and must then leave nothing running.

        Raises:
            ToolError: the arguments are wrong, or the tool cannot do it; the text is for the model.
        """
        ...

    async def calc_reward(self, instance_id: str) -> float | None:
        """What the instance says about the whole episode, asked once at its end; None: nothing."""
        ...

    async def release(self, instance_id: str) -> None:
        """Drop the instance. Called exactly once after every create, also one that raised or was cancelled."""
        ...
