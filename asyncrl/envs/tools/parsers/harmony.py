"""Calls as gpt-oss writes them: a message of its own, `to=functions.NAME`, whose content is the arguments.

`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`; the recipient may come before the
channel. Source: the Harmony response format.
"""

import re

from asyncrl.envs.tools.parsers.base import BadCall, Taken, text_but_begun, text_up_to
from asyncrl.envs.tools.parsers.json_calls import json_at, with_arguments

RECIPIENT = "to=functions."
_OPENINGS = (f"<|channel|>commentary {RECIPIENT}", RECIPIENT)
_OPENING = re.compile("|".join(map(re.escape, _OPENINGS)))
_CALL, _MESSAGE = "<|call|>", "<|message|>"
_HEADER = re.compile(
    r"(?:<\|channel\|>commentary )?to=functions\.(?P<name>[A-Za-z0-9_.-]{1,64})"
    r"(?:<\|channel\|>\w{1,32})?(?: ?<\|constrain\|>)?(?: ?\w{1,32})?<\|message\|>"
)
_LONGEST_HEADER = 256


class HarmonyParser:
    """A message to a function is a call; whatever else mentions one is text."""

    may_complete = "}>"

    def is_shown_by(self, template: str) -> bool:
        """It writes the channel of calls."""
        return "<|channel|>commentary" in template

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """Text up to a message to a function, or one such message."""
        header = _HEADER.match(rest)
        if header is None:
            return _text(rest, is_end=is_end)
        found = json_at(rest, header.end())
        if found.is_valid:
            if not found.is_final and not is_end:
                return None
            end = found.end
            if not is_end and _CALL.startswith(rest[end : end + len(_CALL)]) and not rest.startswith(_CALL, end):
                return None
            num_chars = end + (len(_CALL) if rest.startswith(_CALL, end) else 0)
            return Taken((with_arguments(header["name"], found.value, num_chars),), num_chars)
        if not found.is_final and not is_end:
            return None
        end = rest.find(_CALL, header.end())
        if end < 0 and not is_end:
            return None
        num_chars = len(rest) if end < 0 else end + len(_CALL)
        wrong = "unclosed" if found.is_cut else "malformed"
        return Taken((BadCall(wrong, header["name"], "Write one JSON object of arguments.", num_chars),), num_chars)


def _text(rest: str, *, is_end: bool) -> Taken | None:
    """The text before the first message to a function, or before what may become one."""
    place = 0
    while (opening := _OPENING.search(rest, place)) is not None:
        start = opening.start()
        # What is too long for a header, or has its end and does not match, never becomes one.
        is_open = not is_end and len(rest) - start < _LONGEST_HEADER and rest.find(_MESSAGE, start) < 0
        if is_open or _HEADER.match(rest, start):
            return text_up_to(start, rest)
        place = start + 1
    return text_but_begun(rest, *_OPENINGS, is_end=is_end)
