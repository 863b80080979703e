"""What files of tools import from verl.tools.function_tool: the decorator that makes a function a tool."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from asyncrl.data.values import Json
from asyncrl.envs.tools.verl.schemas import OpenAIFunctionToolSchema

F = TypeVar("F", bound=Callable[..., object])
MARK = "__verl_function_tool__"


@dataclass(frozen=True)
class Marked:
    """What the decorator was told.

    Attributes:
        name: as the model calls it; None: the function's own.
        schema: what the model is shown; None: what hints and docstring say.
    """

    name: str | None
    schema: Mapping[str, Json] | None


UNMARKED = Marked(None, None)


def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """Mark a function, with or without brackets behind the decorator. The function itself stays as it is.

    Args:
        name: the tool's, where it is not the function's.
        schema: an OpenAIFunctionToolSchema, or a dict of that form.
    """
    if callable(name):
        return function_tool()(name)
    shown = OpenAIFunctionToolSchema.model_validate(schema) if isinstance(schema, Mapping) else schema
    plain = shown.model_dump(exclude_unset=True, exclude_none=True) if isinstance(shown, BaseModel) else None

    def mark(function: F) -> F:
        setattr(function, MARK, Marked(name, plain))
        return function

    return mark
