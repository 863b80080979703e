"""A chat template that counts words: what reading data needs of one, and nothing else."""

import json
from collections.abc import Mapping, Sequence

from asyncrl.data.values import Json


class WordTemplate:
    """A tokenizer that counts words, tool schemas included, as templates do."""

    fingerprint = "words"

    def render(self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ()) -> list[int]:
        texts = [str(message["content"]) for message in messages] + [json.dumps(tool) for tool in tools]
        return list(range(sum(len(text.split()) for text in texts)))

    def control_tokens_in(
        self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[str, ...]:
        return ()
