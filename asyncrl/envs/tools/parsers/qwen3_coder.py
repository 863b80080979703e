"""Calls as Qwen 3 Coder and later Qwen models write them: tags for function and arguments, with plain text inside.

`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`, parts on lines of their own. Values
have no types here; `typed` gives them those of the tool's schema. Source: the models' chat templates.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from asyncrl.data.values import Json, replace_surrogates
from asyncrl.envs.tools.parsers.base import BadCall, Taken, ToolCall, text_before

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HINT = "Write <function=NAME><parameter=KEY>value</parameter></function> inside of the tags."
_END = re.compile(r"</function>\s*</tool_call>")
_FUNCTION = re.compile(r"\s*<function=([^>\n]{1,64})>\s*")
# A value goes on up to a closing tag that another argument or the end follows: it may hold such tags itself.
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)\n?</parameter>\s*(?=<parameter=|\Z)", re.DOTALL)


class Qwen3CoderParser:
    """A call is complete when its function is closed inside of the closed tag."""

    may_complete = ">"

    def is_shown_by(self, template: str) -> bool:
        """It writes a function's tag inside of the call's."""
        return OPEN in template and "<function=" in template

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """Text up to a call, or one call."""
        if not rest.startswith(OPEN):
            return text_before(rest, OPEN, is_end=is_end)
        end = _END.search(rest, len(OPEN))
        if end is not None:
            call = _call(rest[len(OPEN) : end.start()], end.end())
            if isinstance(call, ToolCall) or OPEN not in rest[len(OPEN) : end.start()]:
                return Taken((call,), end.end())
        elif not is_end:
            return None
        # It is never closed, or what closes it belongs to a later one.
        close = rest.find(CLOSE, len(OPEN))
        num_chars = len(rest) if close < 0 else close + len(CLOSE)
        kind, hint = ("unclosed", f"Close the call with </function>{CLOSE}.") if close < 0 else ("malformed", _HINT)
        return Taken((BadCall(kind, "", hint, num_chars),), num_chars)


def _call(body: str, num_chars: int) -> ToolCall | BadCall:
    function = _FUNCTION.match(body)
    if function is None:
        return BadCall("missing name", "", f"Give the name of the tool. {_HINT}", num_chars)
    arguments: dict[str, Json] = {}
    place = function.end()
    while parameter := _PARAMETER.match(body, place):
        arguments[parameter[1]] = replace_surrogates(parameter[2])[0]
        place = parameter.end()
    if place < len(body):
        return BadCall("malformed", function[1], _HINT, num_chars)
    return ToolCall(function[1], arguments, is_untyped=True)


def typed(call: ToolCall, schema: Mapping[str, Json]) -> ToolCall:
    """An untyped call with each value as its tool's schema has it: text where that is a string, otherwise the JSON that
    the text is. What is no JSON stays text, for the tool to refuse. A typed call stays as it is.

    Args:
        schema: the tool's, in OpenAI's form.
    """
    if not call.is_untyped:
        return call
    function = schema.get("function", schema)
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    of = properties if isinstance(properties, Mapping) else {}
    arguments = {key: _typed(value, of.get(key)) for key, value in call.arguments.items()}
    return replace(call, arguments=arguments, is_untyped=False)


def _typed(value: Json, schema: Json) -> Json:
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    types = wanted if isinstance(wanted, list) else [wanted]
    is_open = isinstance(schema, Mapping) and ("anyOf" in schema or "oneOf" in schema)
    if not isinstance(value, str) or "string" in types or (wanted is None and not is_open):
        return value
    words = {"True": "true", "False": "false", "None": "null"}  # as templates write Python's
    try:
        found: Json = json.loads(words.get(value.strip(), value))
    except (ValueError, RecursionError):
        return value
    return found
