"""Sampled ids as pieces of text that never cut a character, for streams.

A token may be a few bytes of a character. Decoded alone it would be U+FFFD, and so would its rest; the pieces' sum
would not be the answer's text. So what ends in the middle of a character waits for the tokens after it.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
MAX_HELD_TOKENS = 64
"""A character has at most 4 bytes. More tokens than this that are no text are no character to come: they are shown."""


class TextPieces:
    """The text of an answer, piece by piece; joined they are `decode` of all ids.

    Args:
        decode: ids -> text; a run of ids decodes alike wherever it stands, but for how its first id's spaces are
            treated. Bytes that are no character are U+FFFD; some decoders make good bytes beside bad ones U+FFFD too,
            and then the pieces show more of them than the whole.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        # Decoders treat a first token otherwise (its space is dropped), so new ids are decoded after those shown last.
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """The text that further ids complete; empty while a character waits for its rest."""
        self._held += ids
        text = self._held_text()
        if text.endswith(REPLACEMENT) and len(self._held) <= MAX_HELD_TOKENS:
            return ""
        return self._show(text)

    def finish(self) -> str:
        """What is left at the end: bytes that became no character."""
        return self._show(self._held_text()) if self._held else ""

    def _held_text(self) -> str:
        text = self._decode([*self._shown, *self._held])
        return text[len(self._decode(self._shown)) :] if self._shown else text

    def _show(self, text: str) -> str:
        if text:
            self._shown, self._held = self._held, []
        return text
