"""Tools in OpenAI's two protocols, and what they ask of the choice of tools."""

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.request_fields import (
    Object,
    invalid,
    read_name,
    read_object,
    read_objects,
    unexpected,
)

SCHEMA_FIELDS = ("name", "description", "parameters")
"""What the policy is told of a tool. `strict` is not: nothing here constrains what it samples."""
NO_FORCING = (
    "No policy can be made to call a tool without changing what it samples, and its tokens would no longer be its own. "
    'Use "auto" or "none", and ask for the call in the prompt.'
)


def read_nested_tools(value: Json) -> tuple[dict[str, Json], ...]:
    """Tools in the form of chat completions: `{"type": "function", "function": {schema}}`."""
    return tuple(
        _schema(read_object(tool.get("function"), f"{at}.function"), f"{at}.function")
        for at, tool in read_objects(value, "tools")
        if _is_function(tool, at)
    )


def read_flat_tools(value: Json) -> tuple[dict[str, Json], ...]:
    """Tools in the form of responses: `{"type": "function", schema...}`."""
    return tuple(_schema(tool, at) for at, tool in read_objects(value, "tools") if _is_function(tool, at))


def read_calls_allowed(value: Json) -> bool:
    """Whether the choice of tools lets the policy call one.

    Raises:
        ProtocolError: a call is required.
    """
    if value in (None, "auto", "none"):
        return value != "none"
    if value == "required" or isinstance(value, dict):
        raise invalid(f"tool_choice: found {'required' if value == 'required' else 'a named tool'}. {NO_FORCING}")
    raise unexpected("tool_choice", value, '"auto" or "none"')


def _is_function(tool: Object, path: str) -> bool:
    if tool.get("type") != "function":
        raise unexpected(f"{path}.type", tool.get("type"), '"function": other tools run at other servers')
    return True


def _schema(function: Object, path: str) -> dict[str, Json]:
    read_name(function.get("name"), f"{path}.name")
    if function.get("parameters") is not None:
        read_object(function["parameters"], f"{path}.parameters")
    kept = {name: function[name] for name in SCHEMA_FIELDS if function.get(name) is not None}
    return {"type": "function", "function": kept}
