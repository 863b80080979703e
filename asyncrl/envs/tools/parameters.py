"""The parameters of a Python function as a JSON schema, and a model's arguments checked against them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from asyncrl.data.values import Json, excerpt
from asyncrl.envs.tools.base import ToolError
from asyncrl.envs.tools.docstrings import described

MAX_SHOWN = 3  # of what is wrong with a call: the model's own junk must not fill its prompt
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Parameters:
    """What a function takes.

    Attributes:
        adapters: name -> what checks and converts its value.
        required: names without a default.
        schema: JSON schema of an object; nested schemas are written out where they are used.
    """

    adapters: Mapping[str, TypeAdapter[Any]]  # Any: whatever the function takes
    required: tuple[str, ...]
    schema: Mapping[str, Json]

    def checked(self, arguments: Mapping[str, Json]) -> dict[str, Any]:
        """The values to call the function with; only what was given, so that its own defaults hold.

        Raises:
            ToolError: says for each wrong argument what was expected; bounded, however long the arguments are.
        """
        wrong = [f"there is no argument {excerpt(name)!r}" for name in arguments if name not in self.adapters]
        wrong += [f"{name} is missing" for name in self.required if name not in arguments]
        values: dict[str, Any] = {}
        for name in (name for name in arguments if name in self.adapters):
            try:
                values[name] = self.adapters[name].validate_python(arguments[name])
            except ValidationError as error:
                wrong.append(_wrong(name, error))
        if wrong:
            more = f"; {len(wrong) - MAX_SHOWN} more" if len(wrong) > MAX_SHOWN else ""
            takes = ", ".join(self.adapters) or "none"
            raise ToolError(f"wrong arguments: {'; '.join(wrong[:MAX_SHOWN])}{more}. It takes: {takes}.")
        return values


def parameters_of(function: Callable[..., object]) -> Parameters:
    """Read a function's signature.

    Raises:
        ValueError: a parameter has no type hint, cannot be named in a call, or has a type without a JSON schema. The
            text says which.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ValueError(f"its type hints cannot be read: {error}") from None
    texts = described(inspect.getdoc(function)).arguments
    adapters: dict[str, TypeAdapter[Any]] = {}
    required: list[str] = []
    properties: dict[str, Json] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in _BY_NAME:
            raise ValueError(f"its parameter {parameter} cannot be given by name, which is how a model calls it")
        if name not in hints:
            raise ValueError(f"its parameter {name} has no type hint, which the model needs to see")
        adapters[name], properties[name] = _adapter(name, hints[name], texts.get(name))
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        else:
            properties[name] = _with_default(properties[name], parameter.default)
    schema: dict[str, Json] = {"type": "object", "properties": properties, "required": list[Json](required)}
    return Parameters(adapters, tuple(required), schema | {"additionalProperties": False})


def written_out(schema: Json) -> Json:
    """A JSON schema without references to its own `$defs`, which chat templates show to no model, and without titles,
    which repeat the names.

    Raises:
        ValueError: a schema that contains itself cannot be written out.
    """
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    assert isinstance(definitions, dict)
    return _resolved(schema, definitions, ())


def _resolved(schema: Json, definitions: Mapping[str, Json], around: tuple[str, ...]) -> Json:
    if isinstance(schema, list):
        return [_resolved(item, definitions, around) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        name = reference.removeprefix("#/$defs/")
        if name in around:
            raise ValueError(f"the schema of {name} contains itself")
        inner = _resolved(definitions[name], definitions, (*around, name))
        assert isinstance(inner, dict)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return inner | {key: _resolved(value, definitions, around) for key, value in beside.items()}
    return {
        key: _resolved(value, definitions, around)
        for key, value in schema.items()
        if key != "$defs" and not (key == "title" and isinstance(value, str))  # a property may be called title
    }


def _adapter(name: str, hint: Any, text: str | None) -> tuple[TypeAdapter[Any], dict[str, Json]]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        schema = written_out(adapter.json_schema())
    except (PydanticUserError, PydanticInvalidForJsonSchema, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the type of its parameter {name} has no JSON schema: {reason}") from None
    assert isinstance(schema, dict)
    return adapter, schema | ({"description": text} if text else {})


def _with_default(schema: Json, default: object) -> dict[str, Json]:
    """The schema with the default that the model would leave out; one that JSON cannot hold is not shown."""
    assert isinstance(schema, dict)
    if isinstance(default, FieldInfo):
        raise ValueError("a pydantic Field is no default of a function; write Annotated[type, Field(...)]")
    try:
        return schema | {"default": to_jsonable_python(default)}
    except ValueError:
        return schema


def _wrong(name: str, error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    found = f", not {excerpt(repr(first['input']))}" if first["type"] != "missing" else ""
    return f"{name}{excerpt(place) if place else ''}: {first['msg']}{found}"
