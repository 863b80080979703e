"""What became of the tool calls of a turn. Whatever the model writes, the outcome is a message to it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.data.values import Json
from asyncrl.envs.tools.parsers import BadCall, ToolCall

MAX_TOLD_CHARS = 1000  # of a message about a call that was not run: the model's own junk must not fill its context
MAX_NAME_CHARS = 64

Side = Literal["left", "middle", "right"]


@dataclass(frozen=True)
class CallOutcome:
    """What became of one call.

    Attributes:
        outcome: `ok`, `ok (string form)`; `tool error`, `timeout` or `tool failed` of a call that was run; what was
            wrong with one that was not: a kind of BadCall, `unknown tool`, `too many calls`.
        name: the tool's, empty if it is not known.
        content: what the model is told.
        reward, metrics: what the tool says the call is worth, and numbers for people.
    """

    outcome: str
    name: str
    content: str
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def count_name(self) -> str:
        """The outcome as counts name it."""
        return "tool_calls_" + re.sub(r"\W+", "_", self.outcome).strip("_")

    def message(self, call_id: str) -> dict[str, Json]:
        """The tool's turn in the conversation. Some templates refuse an id that has not 9 letters or digits."""
        return {"role": "tool", "name": self.name or "unknown", "tool_call_id": call_id, "content": self.content}


def refused(call: ToolCall | BadCall, names: tuple[str, ...]) -> CallOutcome | None:
    """What is told about a call that cannot be run; None: it can.

    Args:
        names: the tools that there are.
    """
    if isinstance(call, BadCall):
        name = call.name if call.name in names else ""
        return CallOutcome(
            call.kind, name, _told(f"error: {call.kind}, in a call of {call.num_chars} characters. {call.hint}")
        )
    if call.name not in names:
        name = call.name if len(call.name) <= MAX_NAME_CHARS else ""
        there_is = f"There is: {', '.join(names)}." if names else "There are no tools."
        return CallOutcome("unknown tool", name, _told(f"error: unknown tool. {there_is}"))
    return None


def not_run(num_calls: int, limit: int) -> CallOutcome:
    """What is told about the calls of a turn that are over its limit."""
    return CallOutcome(
        "too many calls", "", f"error: {num_calls} further calls were not run. A turn may have {limit} calls at most."
    )


def call_id(turn: int, index: int) -> str:
    """The id of a call, by its place in the episode: 9 letters and digits, as the strictest templates want it."""
    return f"c{turn % 10_000:04d}{index % 10_000:04d}"


def truncated(text: str, limit: int, side: Side) -> str:
    """A text of which at most `limit` characters are left, and a note in place of the others, which comes on top.

    Args:
        side: what is cut out: its beginning (left), its middle, or its end (right).
    """
    if len(text) <= limit:
        return text
    note = f"[{len(text) - limit} characters left out]"
    if side == "left":
        return f"{note}...{text[-limit:]}"
    if side == "right":
        return f"{text[:limit]}...{note}"
    tail = limit // 2
    return f"{text[: limit - tail]}...{note}...{text[len(text) - tail :]}"


def _told(text: str) -> str:
    return text if len(text) <= MAX_TOLD_CHARS else text[: MAX_TOLD_CHARS - 3] + "..."
