"""The items of a streamed response while they grow: the events that begin, extend and end each kind of them.

Events are dicts without the numbers that only the stream knows, its `sequence_number` and the item's `output_index`.
"""

from typing import Protocol

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import ToolCall
from asyncrl.rollout.gateway.openai_response_items import (
    IN_PROGRESS,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)

Event = dict[str, Json]
ADDED, DONE = "response.output_item.added", "response.output_item.done"
PART: Event = {"content_index": 0}  # every item here has one part


class OpenItem(Protocol):
    """An item of which pieces come.

    Attributes:
        place: which one of an answer's items it is.
        text: all its pieces so far.
    """

    text: str

    @property
    def place(self) -> str: ...
    def begun(self) -> list[Event]: ...
    def delta(self, piece: str) -> Event: ...
    def done(self, status: str) -> list[Event]: ...


class OpenText:
    """What the policy says."""

    place = "text"

    def __init__(self, answer_id: str) -> None:
        self.text, self._answer_id = "", answer_id
        self._id: Event = {"item_id": f"msg_{answer_id}"}

    def begun(self) -> list[Event]:
        """The item, and its part."""
        item = message_item(self._answer_id, [], IN_PROGRESS)
        part = text_part("", [])
        return [
            {"type": ADDED, "item": item},
            {"type": "response.content_part.added", **self._id, **PART, "part": part},
        ]

    def delta(self, piece: str) -> Event:
        """A piece of text."""
        return {"type": "response.output_text.delta", **self._id, **PART, "delta": piece, "logprobs": []}

    def done(self, status: str) -> list[Event]:
        """The text, its part and the item."""
        part = text_part(self.text, [])
        return [
            {"type": "response.output_text.done", **self._id, **PART, "text": self.text, "logprobs": []},
            {"type": "response.content_part.done", **self._id, **PART, "part": part},
            {"type": DONE, "item": message_item(self._answer_id, [part], status)},
        ]


class OpenReasoning:
    """What the policy thinks before it speaks."""

    place = "reasoning"

    def __init__(self, answer_id: str) -> None:
        self.text, self._answer_id = "", answer_id
        self._id: Event = {"item_id": f"rs_{answer_id}"}

    def begun(self) -> list[Event]:
        """The item."""
        return [{"type": ADDED, "item": reasoning_item(self._answer_id, None)}]

    def delta(self, piece: str) -> Event:
        """A piece of reasoning."""
        return {"type": "response.reasoning_text.delta", **self._id, **PART, "delta": piece}

    def done(self, status: str) -> list[Event]:
        """The reasoning and the item."""
        return [
            {"type": "response.reasoning_text.done", **self._id, **PART, "text": self.text},
            {"type": DONE, "item": reasoning_item(self._answer_id, self.text)},
        ]


class OpenCall:
    """A call of a tool."""

    def __init__(self, call: ToolCall, index: int) -> None:
        self.text, self.place, self._call = "", f"call {index}", call
        self._id: Event = {"item_id": f"fc_{call.id}"}

    def begun(self) -> list[Event]:
        """The item, without arguments yet."""
        return [{"type": ADDED, "item": call_item(self._call, "", IN_PROGRESS)}]

    def delta(self, piece: str) -> Event:
        """A piece of the arguments."""
        return {"type": "response.function_call_arguments.delta", **self._id, "delta": piece}

    def done(self, status: str) -> list[Event]:
        """The arguments and the item."""
        done: Event = {"type": "response.function_call_arguments.done", **self._id, "name": self._call.name}
        return [
            {**done, "arguments": self.text},
            {"type": DONE, "item": call_item(self._call, self.text, status)},
        ]
