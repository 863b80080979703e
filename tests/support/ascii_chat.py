"""A chat template without files: a printable character is one token, so that a test can read token ids and write them.

It is append-only, as real templates are where they may be: a conversation rendered as a whole has the same tokens as
one that was continued.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.data.template import TemplateRefused

BEGIN, END, FIRST = 1, 2, 3
VOCAB = 100


class AsciiChat:
    """Ids 3..97 are the characters from the space on, 98 is a line end. A turn begins with 1 and ends with END.

    Args:
        refuses: roles that cannot follow an answer.
    """

    eos_ids = (END,)

    def __init__(self, refuses: Sequence[str] = ()) -> None:
        self.refuses = refuses
        self.num_renders = 0

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The tools, the messages and the header of the answer."""
        self.num_renders += 1
        ids = [BEGIN, *encode(json.dumps(list(tools)))] if tools else []
        return [*ids, *_turns(messages), BEGIN, *encode("a:")]

    def continuation(
        self, messages: Sequence[Mapping[str, Any]], last_id: int | None = None, tools: Sequence[object] = ()
    ) -> list[int]:
        """The messages behind an answer, which is ended first if it was cut."""
        if any(message["role"] in self.refuses for message in messages):
            raise TemplateRefused("no such turn here")
        closing = [] if last_id is None or last_id == END else [END]
        return [*closing, *_turns(messages), BEGIN, *encode("a:")]

    def decode(self, ids: Sequence[int]) -> str:
        """The characters up to the end."""
        ids = list(ids)
        return "".join(map(_char, ids[: ids.index(END)] if END in ids else ids))


def encode(text: str) -> list[int]:
    """The ids of a text; characters that there are none for become ?."""
    return [98 if char == "\n" else FIRST + ord(char) - 32 if " " <= char <= "~" else 34 for char in text]


def _char(id: int) -> str:
    return "\n" if id == 98 else chr(id - FIRST + 32) if FIRST <= id < 98 else ""


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    ids: list[int] = []
    for message in messages:
        calls = "".join(json.dumps(call["function"]) for call in message.get("tool_calls", ()))
        ids += [BEGIN, *encode(f"{message['role'][0]}:{message['content']}{calls}"), END]
    return ids
