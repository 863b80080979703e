"""Calls as Mistral's models write them, in two generations of tokenizers.

`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and since tokenizer v11 `[TOOL_CALLS]name[ARGS]{...}`, once for
each call. Source: mistral-common, the instruct encoders of versions 3 to 13.
"""

import json
import re

from asyncrl.data.values import Json
from asyncrl.envs.tools.parsers.base import BadCall, Item, Taken, ToolCall, text_before
from asyncrl.envs.tools.parsers.json_calls import JsonAt, call_from, json_at, skip_space, with_arguments

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HINT = 'Write [TOOL_CALLS][{"name": ..., "arguments": {...}}].'
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BETWEEN = re.compile(rf"(?:{re.escape(CALL_ID)}[A-Za-z0-9]{{1,64}})?(?:{re.escape(ARGS)})?[ \t\r\n]*(?={{)")


class MistralParser:
    """The control token opens a list of calls, or one call by its name."""

    may_complete = "]}["

    def is_shown_by(self, template: str) -> bool:
        """It writes the control token."""
        return OPEN in template

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """Text up to the control token, or what follows one."""
        if not rest.startswith(OPEN):
            return text_before(rest, OPEN, is_end=is_end)
        start = skip_space(rest, len(OPEN))
        if start == len(rest) and not is_end:
            return None
        if rest.startswith(("[", "{"), start) and not rest.startswith(OPEN, start):
            if not is_end and OPEN.startswith(rest[start:]):
                return None
            found = json_at(rest, start)
            if found.is_valid:
                return Taken(_listed(found.value, found.end), found.end)
            return _broken(rest, found, "", is_end=is_end)
        return _named(rest, start, is_end=is_end)


def _listed(value: Json, num_chars: int) -> tuple[Item, ...]:
    calls = value if isinstance(value, list) else [value]
    if not calls:
        return (BadCall("malformed", "", f"The list of calls is empty. {_HINT}", num_chars),)
    return tuple(call_from(call, ("arguments",), _HINT, len(json.dumps(call))) for call in calls)


def _named(rest: str, start: int, *, is_end: bool) -> Taken | None:
    name = _NAME.match(rest, start)
    between = _BETWEEN.match(rest, name.end()) if name else None
    if name is None or between is None:
        return _until_next(rest, "malformed", name.group() if name else "", is_end=is_end)
    found = json_at(rest, between.end())
    if not found.is_valid:
        return _broken(rest, found, name.group(), is_end=is_end)
    call: ToolCall | BadCall = with_arguments(name.group(), found.value, found.end)
    return Taken((call,), found.end)


def _broken(rest: str, found: JsonAt, name: str, *, is_end: bool) -> Taken | None:
    if not found.is_final and not is_end:
        return None
    return _until_next(rest, "unclosed" if found.is_cut else "malformed", name, is_end=is_end)


def _until_next(rest: str, wrong: str, name: str, *, is_end: bool) -> Taken | None:
    """A broken call goes on up to the next control token."""
    end = rest.find(OPEN, len(OPEN))
    if end < 0 and not is_end:
        return None
    num_chars = len(rest) if end < 0 else end
    hint = "Close the call." if wrong == "unclosed" else _HINT
    return Taken((BadCall(wrong, name, hint, num_chars),), num_chars)
