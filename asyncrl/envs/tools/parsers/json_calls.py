"""JSON inside of a turn: read from a place in the text, and made a call."""

import json
from dataclasses import dataclass
from typing import NoReturn

from asyncrl.data.values import Json, kind, replace_surrogates
from asyncrl.envs.tools.parsers.base import BadCall, ToolCall

_NEAR = 16  # an error of JSON is told from fewer characters after its place than these


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


@dataclass(frozen=True)
class JsonAt:
    """What stands at a place in a text.

    Attributes:
        value: the decoded value, if `is_valid`.
        end: where the value ends.
        is_final: no text after this one could change what stands there, except the length of a number.
        is_cut: it breaks off at the end of the text.
    """

    value: Json = None
    end: int = 0
    is_valid: bool = False
    is_final: bool = False
    is_cut: bool = False


def json_at(text: str, start: int) -> JsonAt:
    """Decode the JSON value that begins at `start`, white space skipped. NaN and infinities are no JSON."""
    start = skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        is_cut = error.msg.startswith("Unterminated string") or error.pos >= len(text)
        return JsonAt(is_final=not is_cut and error.pos + _NEAR < len(text), is_cut=is_cut)
    except (ValueError, RecursionError):  # a number of thousands of digits, NaN, thousands of brackets
        return JsonAt()
    return JsonAt(replace_surrogates(value)[0], end, is_valid=True, is_final=isinstance(value, dict | list | str))


def skip_space(text: str, start: int) -> int:
    """The next place that holds something else than white space of JSON."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


def call_from(value: Json, keys: tuple[str, ...], hint: str, num_chars: int) -> ToolCall | BadCall:
    """The call that an object is meant as.

    Args:
        value: the decoded object; anything else is malformed.
        keys: where its arguments may be; the first that is there counts.
        hint: how to write a call.
        num_chars: length of its text.
    """
    if not isinstance(value, dict):
        return BadCall("malformed", "", hint, num_chars)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return BadCall("missing name", "", "Give the name of the tool.", num_chars)
    key = next((key for key in keys if key in value), None)
    if key is None:
        return BadCall("missing arguments", name, f"Give {keys[0]}, {{}} if there are none.", num_chars)
    return with_arguments(name, value[key], num_chars)


def with_arguments(name: str, arguments: Json, num_chars: int) -> ToolCall | BadCall:
    """The call of a tool with these arguments: an object, or a string that holds one."""
    decoded, as_string = arguments, isinstance(arguments, str)
    if isinstance(arguments, str):
        found = json_at(arguments, 0)
        whole = found.is_valid and skip_space(arguments, found.end) == len(arguments)
        decoded = found.value if whole else None
    if not isinstance(decoded, dict):
        told = "a string that holds no object" if as_string else kind(arguments)
        return BadCall("arguments not an object", name, f"The arguments must be an object; they are {told}.", num_chars)
    return ToolCall(name, decoded, as_string)
