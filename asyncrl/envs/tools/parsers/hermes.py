"""Calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Source: the chat templates of Hermes 2 Pro, Qwen 2.5 and Qwen 3.
"""

from asyncrl.envs.tools.parsers.base import BadCall, Taken, text_before
from asyncrl.envs.tools.parsers.json_calls import call_from, json_at, skip_space

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HINT = 'Write one JSON object: {"name": ..., "arguments": {...}}.'


class HermesParser:
    """A call is closed by the tag after its object; a tag within a string of it is text."""

    may_complete = ">"

    def is_shown_by(self, template: str) -> bool:
        """It writes the tags, and no tags inside of them as Qwen 3 Coder and GLM have."""
        return OPEN in template and "<function=" not in template and "<arg_key>" not in template

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """Text up to a call, or one call."""
        if not rest.startswith(OPEN):
            return text_before(rest, OPEN, is_end=is_end)
        found = json_at(rest, len(OPEN))
        if found.is_valid:
            after = skip_space(rest, found.end)
            if rest.startswith(CLOSE, after):
                num_chars = after + len(CLOSE)
                return Taken((call_from(found.value, ("arguments",), _HINT, num_chars),), num_chars)
            if not is_end and (not found.is_final or CLOSE.startswith(rest[after : after + len(CLOSE)])):
                return None
        elif not found.is_final and not is_end:
            return None
        end = rest.find(CLOSE, found.end if found.is_valid else len(OPEN))
        if end >= 0:
            num_chars = end + len(CLOSE)
            return Taken((BadCall("malformed", "", _HINT, num_chars),), num_chars)
        if not is_end:
            return None
        return Taken((BadCall("unclosed", "", f"Close the call with {CLOSE}.", len(rest)),), len(rest))
