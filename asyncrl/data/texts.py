"""Token ids as text, for people, by the tokenizer that a run was started with; or the reason why there is none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from asyncrl.data.template import PromptTemplate, TokenizerFiles
from asyncrl.errors import DataError


@dataclass(frozen=True)
class Texts:
    """decode: ids to text, control tokens included; None where `why_not` says why there is no text."""

    decode: Callable[[Sequence[int]], str] | None
    why_not: str = ""

    @classmethod
    def of_run(cls, model_dir: Path, fingerprint: str) -> Self:
        """By the tokenizer of a model directory, if it is the one with this fingerprint (empty: nobody knows it)."""
        try:
            files = TokenizerFiles.read(model_dir)
            found = PromptTemplate(files).fingerprint
        except DataError as error:
            return cls(None, f"No tokenizer to show text by: {error}")
        if fingerprint and found != fingerprint:
            return cls(
                None,
                f"{model_dir} has the tokenizer and template {found}, the run was started with {fingerprint}: its text "
                "would be wrong.",
            )
        tokenizer = Tokenizer.from_str(files.tokenizer_json)
        return cls(lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)))
