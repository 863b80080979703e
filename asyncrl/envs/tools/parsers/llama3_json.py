"""Calls as Llama 3.1 to 3.3 write them: a turn is `{"name": ..., "parameters": {...}}`, or several with `;` between.

`<|python_tag|>` may come first; without it an object at the beginning of a turn is a call if it has a name and
parameters, and otherwise an answer in JSON. Source: the models' chat templates and prompt format.
"""

import re
from collections.abc import Iterator

from asyncrl.envs.tools.parsers.base import BadCall, Item, Taken, spaces, text_before
from asyncrl.envs.tools.parsers.json_calls import call_from, json_at, skip_space

TAG = "<|python_tag|>"
_KEYS = ("parameters", "arguments")
_HINT = 'Write one JSON object: {"name": ..., "parameters": {...}}.'
_MEANT = re.compile(r'\{\s*"(?:name|type|function)"\s*:')


class Llama3JsonParser:
    """What a turn is shows at its end: more calls may follow."""

    may_complete = ""

    def is_shown_by(self, template: str) -> bool:
        """It writes the tag, or tools' answers under the header of these models."""
        return TAG in template or "<|start_header_id|>ipython" in template

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """All of a turn of calls at its end; text otherwise."""
        if rest.startswith(TAG):
            return _rest_of_calls(rest, len(TAG), is_tagged=True) if is_end else None
        if is_start and rest[0].isspace():
            return spaces(rest)
        if is_start and rest.startswith("{"):
            if not is_end:
                return None
            taken = _rest_of_calls(rest, 0, is_tagged=False)
            if not isinstance(taken.items[0], str):
                return taken
        return text_before(rest, TAG, is_end=is_end)


def _rest_of_calls(rest: str, start: int, *, is_tagged: bool) -> Taken:
    found = list(_calls(rest, start, is_tagged=is_tagged))
    return Taken(tuple(item for item, _ in found), found[-1][1])


def _calls(rest: str, start: int, *, is_tagged: bool) -> Iterator[tuple[Item, int]]:
    """Each call with the place where it ends; the first one of a turn without the tag may turn out to be text."""
    while True:
        found = json_at(rest, start)
        if not found.is_valid:
            is_meant = is_tagged or _MEANT.match(rest, skip_space(rest, start))
            wrong = "unclosed" if found.is_cut and skip_space(rest, start) < len(rest) else "malformed"
            yield BadCall(wrong, "", _HINT, len(rest) - start) if is_meant else rest, len(rest)
            return
        value = found.value
        is_call = isinstance(value, dict) and "name" in value and any(key in value for key in _KEYS)
        if not is_call and not is_tagged:
            yield rest, len(rest)
            return
        yield call_from(value, _KEYS, _HINT, found.end - start), found.end
        start = skip_space(rest, found.end)
        if not rest.startswith(";", start):
            return
        start, is_tagged = start + 1, True
        if skip_space(rest, start) == len(rest):
            return
