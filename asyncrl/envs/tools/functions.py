"""Python functions as tools: type hints and docstring become the schema, what they return becomes text."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.docstrings import described
from asyncrl.envs.tools.parameters import parameters_of
from asyncrl.envs.tools.threads import CallThreads
from asyncrl.envs.user_code import load_named
from asyncrl.errors import ConfigError

KEY = "rollout.tools.functions"


class FunctionTool:
    """A function as a tool. It keeps nothing of an episode; several calls may run it at once.

    A function that is not async runs in a thread. It returns text, anything that JSON can hold, a pydantic model, or a
    ToolAnswer; it raises ToolError for the model to read.
    """

    keeps_state = False

    def __init__(self, function: Callable[..., object], threads: CallThreads) -> None:
        """Read the function.

        Raises:
            ValueError: it has no description, or parameters that a model cannot give; says which.
        """
        text = described(inspect.getdoc(function)).summary
        if not text:
            raise ValueError("it has no docstring, and the model would not know what it does")
        self._function, self._threads = function, threads
        self._parameters = parameters_of(function)
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.schema: Mapping[str, Json] = {
            "type": "function",
            "function": {"name": self.name, "description": text, "parameters": dict(self._parameters.schema)},
        }

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Nothing to make."""

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """Call the function. Raises ToolError for wrong arguments, and whatever the function raises."""
        values = self._parameters.checked(arguments)
        if inspect.iscoroutinefunction(self._function):
            returned = await cast("Awaitable[object]", self._function(**values))
        else:
            returned = await self._threads.run(lambda: self._function(**values))
        return answer_of(returned)

    async def calc_reward(self, instance_id: str) -> None:
        """It has no opinion."""

    async def release(self, instance_id: str) -> None:
        """Nothing to drop."""


def answer_of(returned: object) -> ToolAnswer:
    """What a function returned, as the model reads it.

    Raises:
        TypeError: it is nothing that JSON can hold.
    """
    if isinstance(returned, ToolAnswer):
        return returned
    if isinstance(returned, str):
        return ToolAnswer(returned)
    try:
        return ToolAnswer(json.dumps(to_jsonable_python(returned), ensure_ascii=False))
    except (PydanticSerializationError, ValueError) as error:
        raise TypeError(f"it returned a {type(returned).__name__}, which JSON cannot hold: {error}") from None


def load_function(reference: str, threads: CallThreads) -> FunctionTool:
    """The function that a configuration names.

    Raises:
        ConfigError: see load_named; or it cannot be a tool.
    """
    found = load_named(KEY, reference)
    if not inspect.isroutine(found):
        raise ConfigError(f"{KEY} = {reference!r} is a {type(found).__name__}, wanted a function.")
    try:
        return FunctionTool(found, threads)
    except ValueError as error:
        raise ConfigError(f"{KEY} = {reference!r} cannot be a tool: {error}. See docs/tools.md.") from None
