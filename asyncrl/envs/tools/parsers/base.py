"""What a parser of tool calls is, and how a turn is read by one: piece by piece, or at once, with the same result.

A parser looks at what is left of a turn and takes the next item from its beginning: text, calls, or something that was
meant as one. While more text may come it decides only what no further text could change, so that the cuts between
pieces change nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from asyncrl.data.thoughts import THOUGHT_CLOSE, THOUGHT_OPEN
from asyncrl.data.values import Json

MAX_ITEMS = 1000  # of one turn; what comes after them is text: bounds the work on a turn made of broken calls


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call.

    Attributes:
        as_string: its arguments came as JSON in a string, and are decoded here.
        is_untyped: the form has no types, so all values are text; `typed` gives them those of the tool's schema.
    """

    name: str
    arguments: Mapping[str, Json]
    as_string: bool = False
    is_untyped: bool = False


@dataclass(frozen=True)
class BadCall:
    """What was meant as a call and is none.

    Attributes:
        kind: what is wrong, as it is counted and told: `malformed`, `unclosed`, `missing name`, `missing arguments`,
            `arguments not an object`.
        name: of the tool, as far as it is known.
        hint: how to write it, for the model.
        num_chars: its length.
    """

    kind: str
    name: str
    hint: str
    num_chars: int


Item: TypeAlias = str | ToolCall | BadCall
"""A piece of a turn; a string is text."""


@dataclass(frozen=True)
class Taken:
    """Items from the beginning of a text, and how many of its characters they are."""

    items: tuple[Item, ...]
    num_chars: int


class ToolCallParser(Protocol):
    """A form in which models write calls. In envs/tools/parsers; held to tests/unit/.../tools/test_parsers.py."""

    def is_shown_by(self, template: str) -> bool:
        """Whether the source of a chat template shows that its model writes calls in this form."""
        ...

    @property
    def may_complete(self) -> str:
        """Characters one of which the piece must hold that completes a call."""
        ...

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """The next items of a turn.

        Args:
            rest: what is left of the turn so far; not empty.
            is_start: nothing but white space and thoughts came before it.
            is_end: no more comes after it. If so, something must be taken.
        Returns:
            None: that depends on what comes next.
        """
        ...


class TurnReader:
    """Reads one turn as it is generated. Calls inside of thoughts are thoughts."""

    def __init__(self, parser: ToolCallParser, *, in_thought: bool = False) -> None:
        """in_thought: the prompt ends with the opening of a thought, so the turn begins inside of it."""
        self._parser, self._in_thought = parser, in_thought
        self._rest, self._is_start, self._num_calls = "", True, 0
        self._waits, self._retry_at = False, 0

    def feed(self, text: str) -> tuple[Item, ...]:
        """The items that are certain now, in order. Text comes in pieces of any size."""
        self._rest += text
        if self._waits and (
            len(self._rest) < self._retry_at or not any(char in text for char in self._parser.may_complete)
        ):
            return ()
        return tuple(self._take(is_end=False))

    def close(self) -> tuple[Item, ...]:
        """The items that were left: the turn has ended."""
        return tuple(self._take(is_end=True))

    def _take(self, *, is_end: bool) -> Iterator[Item]:
        self._waits = False
        while self._rest:
            taken = self._next(is_end)
            if taken is None:
                return
            self._num_calls += sum(not isinstance(item, str) for item in taken.items)
            self._rest = self._rest[taken.num_chars :]
            yield from (item for item in taken.items if item != "")

    def _next(self, is_end: bool) -> Taken | None:
        if self._is_start:
            begun = self._rest.lstrip()
            if self._in_thought or begun.startswith(THOUGHT_OPEN):
                return self._thought(is_end)
            if not is_end and THOUGHT_OPEN.startswith(begun):
                return None
        if self._num_calls >= MAX_ITEMS:
            return Taken((self._rest,), len(self._rest))
        taken = self._parser.take(self._rest, is_start=self._is_start, is_end=is_end)
        if taken is None:
            self._waits = len(self._rest) >= _LONGEST_MARKER
            # A long call is looked at again when it has grown by a share: not as often as it has pieces.
            self._retry_at = len(self._rest) * 9 // 8 if len(self._rest) > _LONG_CALL else 0
        else:
            self._is_start = self._is_start and not any(not isinstance(i, str) or i.strip() for i in taken.items)
        return taken

    def _thought(self, is_end: bool) -> Taken | None:
        """The thought that the rest begins with, up to its end."""
        end = self._rest.find(THOUGHT_CLOSE)
        if end < 0 and not is_end:
            return None
        self._in_thought = False
        length = len(self._rest) if end < 0 else end + len(THOUGHT_CLOSE)
        return Taken((self._rest[:length],), length)


_LONG_CALL = 4096
_LONGEST_MARKER = 32  # a text that waits and is shorter may be waiting for the rest of an opening marker


@dataclass(frozen=True)
class ParsedTurn:
    """A turn: its text without the calls, and the calls in order, good and bad."""

    text: str
    calls: tuple[ToolCall | BadCall, ...]


def parse_turn(parser: ToolCallParser, text: str, *, in_thought: bool = False) -> ParsedTurn:
    """Read a whole turn.

    Args:
        text: up to its end token, which is left out; other control tokens as text.
        in_thought: see TurnReader.
    """
    reader = TurnReader(parser, in_thought=in_thought)
    items = (*reader.feed(text), *reader.close())
    return ParsedTurn(
        "".join(item for item in items if isinstance(item, str)),
        tuple(item for item in items if not isinstance(item, str)),
    )


def text_before(rest: str, *markers: str, is_end: bool) -> Taken | None:
    """The text before the first marker, or as much of the rest as cannot be the beginning of one; None: nothing yet."""
    found = [start for marker in markers if (start := rest.find(marker)) >= 0]
    return text_up_to(min(found), rest) if found else text_but_begun(rest, *markers, is_end=is_end)


def text_but_begun(rest: str, *markers: str, is_end: bool) -> Taken | None:
    """As much of the rest as cannot be the beginning of a marker; None: nothing yet."""
    return text_up_to(len(rest) - (0 if is_end else max(_num_begun(marker, rest) for marker in markers)), rest)


def text_up_to(end: int, rest: str) -> Taken | None:
    """The text before a place; None: there is none."""
    return Taken((rest[:end],), end) if end else None


def spaces(rest: str) -> Taken:
    """The white space that the rest begins with."""
    num = len(rest) - len(rest.lstrip())
    return Taken((rest[:num],), num)


def _num_begun(marker: str, rest: str) -> int:
    """Characters at the end of the rest that the marker begins with."""
    return next((n for n in range(min(len(marker) - 1, len(rest)), 0, -1) if rest.endswith(marker[:n])), 0)
