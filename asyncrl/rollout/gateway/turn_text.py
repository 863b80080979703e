"""Sampled ids of one turn as pieces of an answer, ended by the request's stop texts."""

from collections.abc import Callable, Sequence

from asyncrl.rollout.gateway.answer_reader import AnswerReader
from asyncrl.rollout.gateway.conversation import TurnDelta
from asyncrl.rollout.gateway.text_pieces import TextPieces
from asyncrl.rollout.gateway.thoughts import num_begun


class TurnText:
    """The text of one turn, fed with ids as they are sampled.

    Args:
        decode: ids to text, up to the id that ends the answer.
        stops: texts that end the answer and are not shown.
        reader: takes the text apart.
        show: is given each piece that may be shown.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: tuple[str, ...],
        reader: AnswerReader,
        show: Callable[[TurnDelta], None],
    ) -> None:
        self._decode, self._stops, self._reader, self._show = decode, stops, reader, show
        self._pieces = TextPieces(decode)
        self._ids: list[int] = []
        self._held = ""
        self.stop_text: str | None = None
        """The stop text that ended the answer."""

    def push(self, ids: Sequence[int]) -> int:
        """Take further ids. How many of them are part of the answer: fewer than there are, if a stop text ended it."""
        num_before = len(self._ids)
        self._ids += ids
        self._held += self._pieces.push(ids)
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            keep = num_begun(self._stops, self._held) if self._stops else 0
            shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
            self._feed(shown)
            return len(ids)
        at, self.stop_text = min(found)
        self._feed(self._held[:at])
        self._held = ""
        num_kept = self._num_with(self.stop_text, num_before)
        del self._ids[num_kept:]
        return num_kept - num_before

    def finish(self) -> None:
        """Show what was held back: nothing more is sampled."""
        if self.stop_text is None:
            self._feed(self._held + self._pieces.finish())
        for piece in self._reader.close():
            self._show(piece)

    def _feed(self, text: str) -> None:
        if text:
            for piece in self._reader.feed(text):
                self._show(piece)

    def _num_with(self, stop: str, num_before: int) -> int:
        """The fewest ids whose text has the stop text in it: bisection, as more ids never take it away."""
        low, high = num_before, len(self._ids)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if stop in self._decode(self._ids[:middle]) else (middle, high)
        return high
