"""Control tokens in the text of messages: found, marked, and encoded as the text they are.

A template writes control tokens as text and the tokenizer turns them into ids; the same text inside a message would
open a turn that nobody took. Source: transformers 5.24, mark_control_tokens and encode_marked_chat.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tokenizers import Tokenizer

from asyncrl.data.values import Json
from asyncrl.errors import DataError

_START, _END = "\U000f0000", "\U000f0001"  # private use: in no text that means something


@dataclass(frozen=True)
class ControlTokens:
    """The control tokens of one template."""

    tokenizer: Tokenizer
    pattern: re.Pattern[str]
    marked_pattern: re.Pattern[str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, template_text: str, config: Mapping[str, Json]) -> Self:
        """Special tokens, and added ones that the tokenizer's config lists or the template writes."""
        added = tokenizer.get_added_tokens_decoder().values()
        names = {
            token.content
            for token in added
            if token.special or _is_control(token.content, config.get("chat_control_tokens"), template_text)
        }
        # Longest first, so that a token wins over one that it contains.
        every = [token.content for token in added]
        return cls(
            tokenizer,
            re.compile(_alternatives(names)),
            re.compile(f"{_START}({_alternatives(every)}){_END}|[{_START}{_END}]"),
        )

    def found_in(self, value: object) -> tuple[str, ...]:
        """Control tokens, or markers of ours, in the strings of plain values; keys do not count."""
        if isinstance(value, str):
            forged = (_START,) if _START in value or _END in value else ()
            return (*self.pattern.findall(value), *forged)
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        return tuple(token for item in items for token in self.found_in(item))

    def marked(self, value: object) -> object:
        """The plain values with every control token in their strings between markers."""
        if isinstance(value, str):
            # A marker that is already there could forge a marked token.
            return self.pattern.sub(f"{_START}\\g<0>{_END}", value.replace(_START, "").replace(_END, ""))
        if isinstance(value, Mapping):
            return {key: self.marked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt rendered from marked messages: marked tokens as plain text, the template's own as tokens.

        Raises:
            DataError: the tokenizer makes the control token even from plain text, so a message with it is unsafe.
        """
        # text, token, text, token, ..., text; None for a marker that a template has separated from its token.
        pieces = self.marked_pattern.split(text)
        ids = self._ids(pieces[0])
        for i, piece in enumerate(pieces[1:], start=1):
            if not piece:
                continue
            if i % 2 == 0:
                ids += self._after_newline(piece, as_text=False)
                continue
            text_ids = self._after_newline(piece, as_text=True)
            if self.tokenizer.token_to_id(piece) in text_ids:
                raise DataError(
                    f"a message contains {piece!r}, which this tokenizer turns into the control token in any case: "
                    "the message could open a turn of its own. Remove it from the row."
                )
            ids += text_ids
        return ids

    def _after_newline(self, piece: str, *, as_text: bool) -> list[int]:
        # A tokenizer that adds a space to the beginning of a text must not add one in the middle of a prompt.
        newline = self._ids("\n")
        encode = self._ids_as_text if as_text else self._ids
        ids = encode("\n" + piece)
        return ids[len(newline) :] if newline and ids[: len(newline)] == newline else encode(piece)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _ids_as_text(self, text: str) -> list[int]:
        # The pipeline without its added tokens; `encode_special_tokens` would still see those that are not special.
        if self.tokenizer.normalizer is not None:
            text = self.tokenizer.normalizer.normalize_str(text)
        words = [text]
        if self.tokenizer.pre_tokenizer is not None:
            words = [word for word, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in self.tokenizer.model.tokenize(word)]


def _is_control(token: str, listed: Json, template_text: str) -> bool:
    if isinstance(listed, list):
        return token in listed
    return token in template_text and not token.isspace()  # white space is text, also where it is an added token


def _alternatives(tokens: Sequence[str] | set[str]) -> str:
    return "|".join(re.escape(token) for token in sorted(tokens, key=lambda token: (-len(token), token))) or "(?!)"
