"""Token ids to text and back, for stop strings and the `text` of answers; a model directory may have no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer


class TextCodec:
    """The model directory's `tokenizer.json`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_dir(cls, path: Path) -> TextCodec | None:
        """None when the directory has no `tokenizer.json`: ids in and out work without."""
        file = path / "tokenizer.json"
        return cls(Tokenizer.from_file(str(file))) if file.exists() else None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def find_stop(self, stops: tuple[str, ...], tail: Callable[[int], Sequence[int]]) -> str | None:
        """The first of `stops` that the newest tokens spell.

        Args:
            stops: non-empty strings.
            tail: count -> the newest `count` output tokens.
        """
        text = self.decode(tail(_window(stops)), skip_special_tokens=False)
        return next((stop for stop in stops if stop in text), None)


@lru_cache(maxsize=256)
def _window(stops: tuple[str, ...]) -> int:
    # A token spells at least one byte, so a stop string that just ended lies within this many tokens.
    return max(len(stop.encode()) for stop in stops) + 1
