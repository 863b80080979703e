"""A chat template without files: one character is one token, so that a test can write token ids down."""

from collections.abc import Mapping, Sequence
from typing import Any

END = 2


class CharChat:
    """A digit is its value plus 10; a turn begins with 1 and ends with END."""

    eos_ids = (END,)

    def __init__(self) -> None:
        self.num_renders = 0

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The last message and the header of the answer."""
        self.num_renders += 1
        return [1, *(10 + int(char) for char in messages[-1]["content"]), END, 1]

    def continuation(
        self, messages: Sequence[Mapping[str, Any]], last_id: int | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The next message, after the end of a turn that was cut."""
        closing = [] if last_id is None or last_id == END else [END]
        return [*closing, *self.render(messages)]

    def decode(self, ids: Sequence[int]) -> str:
        """The digits among the ids."""
        return "".join(str(id - 10) for id in ids if id >= 10)
