"""Tool calls in a model's text: found, checked and run. Whatever the model writes, the outcome is a message to it.

The form is that of Qwen and Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from asyncrl.data.values import Json, kind

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"

Tool = Callable[[Mapping[str, Json]], str]


class ToolError(ValueError):
    """A tool cannot do what it was asked for; the text is told to the model."""


@dataclass(frozen=True)
class CallOutcome:
    """What became of one call: `ok`, `ok (string form)`, or what was wrong with it; and what the model is told."""

    outcome: str
    name: str
    content: str

    def message(self) -> dict[str, Json]:
        """The tool's turn in the conversation."""
        return {"role": "tool", "name": self.name, "content": self.content}


@dataclass(frozen=True)
class _Refused(Exception):
    outcome: str
    name: str
    hint: str


def run_calls(text: str, tools: Mapping[str, Tool]) -> tuple[CallOutcome, ...]:
    """Run every well-formed call in the text once, in order; others run nothing and say why.

    Args:
        text: a model's turn.
        tools: functions of the call's arguments, by name. They raise ToolError for the model to read.
    """
    return tuple(_outcome(block, tools) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str | None]:
    """The text inside each call; None for one that is never closed."""
    rest = text
    while (start := rest.find(_OPEN)) >= 0:
        rest = rest[start + len(_OPEN) :]
        end = rest.find(_CLOSE)
        if end < 0:
            yield None
            return
        yield rest[:end]
        rest = rest[end + len(_CLOSE) :]


def _outcome(block: str | None, tools: Mapping[str, Tool]) -> CallOutcome:
    try:
        name, arguments, outcome = _parsed(block, tools)
        return CallOutcome(outcome, name, tools[name](arguments))
    except _Refused as refused:
        return CallOutcome(refused.outcome, refused.name, f"error: {refused.outcome}. {refused.hint}")
    except ToolError as error:
        return CallOutcome(outcome, name, f"error: {error}")


def _parsed(block: str | None, tools: Mapping[str, Tool]) -> tuple[str, Mapping[str, Json], str]:
    if block is None:
        raise _Refused("unclosed", "", f"Close the call with {_CLOSE}.")
    call = _decoded(block)
    if not isinstance(call, dict):
        raise _Refused("malformed", "", 'Write one JSON object: {"name": ..., "arguments": {...}}.')
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise _Refused("missing name", "", "Give the name of the tool.")
    if "arguments" not in call:
        raise _Refused("missing arguments", name, "Give arguments, {} if there are none.")
    arguments, outcome = call["arguments"], "ok"
    if isinstance(arguments, str):
        arguments, outcome = _decoded(arguments), "ok (string form)"
    if not isinstance(arguments, dict):
        raise _Refused("arguments not an object", name, f"They are {kind(arguments)}.")
    if name not in tools:
        raise _Refused("unknown tool", name, f"There is: {', '.join(tools)}.")
    return name, arguments, outcome


def _decoded(text: str) -> Json:
    try:
        value: Json = json.loads(text)
        return value
    except (ValueError, RecursionError):
        return None
