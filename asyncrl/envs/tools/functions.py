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
from asyncrl.envs.tools.verl.function_tool import MARK, UNMARKED, Marked
from asyncrl.envs.tools.verl.stand_ins import load_written_for_verl
from asyncrl.envs.tools.verl.tool import answer_of_triple
from asyncrl.errors import ConfigError

KEY = "rollout.tools.functions"


class FunctionTool:
    """A function as a tool. It keeps nothing of an episode; several calls may run it at once.

    A function that is not async runs in a thread. It returns text, anything that JSON can hold, a pydantic model, or a
    ToolAnswer; it raises ToolError for the model to read. With verl's decorator it may return what verl allows.
    """

    keeps_state = False

    def __init__(self, function: Callable[..., object], threads: CallThreads) -> None:
        """Read the function.

        Raises:
            ValueError: it has no description, or parameters that a model cannot give; says which.
        """
        self._function, self._threads = function, threads
        self._marked: Marked = getattr(function, MARK, UNMARKED)
        self._parameters = parameters_of(function)
        self.name = str(self._marked.name or getattr(function, "__name__", ""))
        self.schema: Mapping[str, Json] = self._marked.schema or self._own_schema()

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Nothing to make."""

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """Call the function. Raises ToolError for wrong arguments, and whatever the function raises."""
        values = self._parameters.checked(arguments)
        if inspect.iscoroutinefunction(self._function):
            returned = await cast("Awaitable[object]", self._function(**values))
        else:
            returned = await self._threads.run(lambda: self._function(**values))
        is_triple = self._marked is not UNMARKED and (isinstance(returned, tuple) or hasattr(returned, "is_text_only"))
        return answer_of_triple(returned) if is_triple else answer_of(returned)

    async def calc_reward(self, instance_id: str) -> None:
        """It has no opinion."""

    async def release(self, instance_id: str) -> None:
        """Nothing to drop."""

    def _own_schema(self) -> dict[str, Json]:
        text = described(inspect.getdoc(self._function)).summary
        if not text:
            raise ValueError("it has no docstring, and the model would not know what it does")
        function: dict[str, Json] = {"name": self.name, "description": text}
        return {"type": "function", "function": function | {"parameters": dict(self._parameters.schema)}}


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
        ConfigError: see load_written_for_verl; or it cannot be a tool.
    """
    found = load_written_for_verl(KEY, reference)
    if not inspect.isroutine(found):
        raise ConfigError(f"{KEY} = {reference!r} is a {type(found).__name__}, wanted a function.")
    try:
        return FunctionTool(found, threads)
    except ValueError as error:
        raise ConfigError(f"{KEY} = {reference!r} cannot be a tool: {error}. See docs/tools.md.") from None
