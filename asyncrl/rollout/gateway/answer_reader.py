"""An answer's text, taken apart into reasoning, what is said and calls of tools, as it is sampled or at once."""

import json
import secrets
from collections import Counter

from asyncrl.envs.tools.parsers.base import MAX_ITEMS, BadCall, Item, Taken, ToolCallParser, TurnReader
from asyncrl.envs.tools.parsers.base import ToolCall as ParsedCall
from asyncrl.rollout.gateway.conversation import ToolCall, ToolCallPiece, TurnDelta
from asyncrl.rollout.gateway.thoughts import ThoughtSplitter

CALL_ID_CHARS = 9  # the chat templates of Mistral's models refuse any other length


class AnswerReader:
    """Reads one answer. What it gives piece by piece joins to what its attributes hold at the end.

    Args:
        parser: of the calls in it; None: the request has no tools, or wants no calls.
        counts: gets malformed calls by kind. They stay text: the harness decides what to say to them.
    """

    def __init__(
        self, parser: ToolCallParser | None, *, splits_thoughts: bool, in_thought: bool, counts: Counter[str]
    ) -> None:
        self._thoughts = ThoughtSplitter(in_thought=in_thought) if splits_thoughts else None
        self._calls = None if parser is None else TurnReader(_BadCallsAsText(parser, counts))
        self._space = ""
        self.reasoning, self.text = "", ""
        self.tool_calls: list[ToolCall] = []

    def feed(self, text: str) -> list[TurnDelta]:
        """The pieces of reasoning and text that are certain now."""
        thought, said = self._thoughts.feed(text) if self._thoughts is not None else ("", text)
        return self._pieces(thought, self._calls.feed(said) if self._calls is not None else (said,))

    def close(self) -> list[TurnDelta]:
        """What was held back, and then the calls: text between two calls comes before both."""
        thought, said = self._thoughts.close() if self._thoughts is not None else ("", "")
        items = (*self._calls.feed(said), *self._calls.close()) if self._calls is not None else (said,)
        pieces = self._pieces(thought, items)
        if self._space and not self.tool_calls:
            pieces += self._said("", is_end=True)
        for index, call in enumerate(self.tool_calls):
            pieces.append(TurnDelta(tool_call=ToolCallPiece(index, call.id, call.name, call.arguments)))
        return pieces

    def _pieces(self, thought: str, items: tuple[Item, ...]) -> list[TurnDelta]:
        pieces = []
        if thought:
            self.reasoning += thought
            pieces.append(TurnDelta(reasoning=thought))
        for item in items:
            if isinstance(item, ParsedCall):
                arguments = json.dumps(item.arguments, ensure_ascii=False)
                self.tool_calls.append(ToolCall(secrets.token_hex(CALL_ID_CHARS)[:CALL_ID_CHARS], item.name, arguments))
            elif isinstance(item, str):
                pieces += self._said(item)
        return pieces

    def _said(self, text: str, *, is_end: bool = False) -> list[TurnDelta]:
        """Text as it is shown: white space at its end is held back, since it may only part it from a call."""
        text = self._space + text
        shown = text if is_end else text.rstrip()
        self._space = text[len(shown) :]
        if not shown:
            return []
        self.text += shown
        return [TurnDelta(text=shown)]


class _BadCallsAsText:
    """A parser whose malformed calls are the text that they are."""

    def __init__(self, parser: ToolCallParser, counts: Counter[str]) -> None:
        self._parser, self._counts, self._num_bad = parser, counts, 0
        self.may_complete = parser.may_complete

    def is_shown_by(self, template: str) -> bool:
        return self._parser.is_shown_by(template)

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        if self._num_bad >= MAX_ITEMS:  # bounds the work on a turn made of broken calls
            return Taken((rest,), len(rest))
        taken = self._parser.take(rest, is_start=is_start, is_end=is_end)
        bad = [item for item in taken.items if isinstance(item, BadCall)] if taken is not None else []
        if taken is None or not bad:
            return taken
        self._num_bad += len(bad)
        for item in bad:
            self._counts[f"tool_calls_{item.kind.replace(' ', '_')}"] += 1
        good = tuple(item for item in taken.items if not isinstance(item, BadCall))
        return Taken(good or (rest[: taken.num_chars],), taken.num_chars)
