"""The logprobs of sampled tokens in the form that OpenAI's two protocols share."""

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import TurnAnswer


def token_logprobs(answer: TurnAnswer) -> list[Json]:
    """One entry for each sampled token, the end token included; alternatives are not kept, so there are none."""
    return [
        {"token": text, "bytes": _bytes(text), "logprob": logprob, "top_logprobs": []}
        for text, logprob in zip(answer.token_texts, answer.logprobs, strict=True)
    ]


def _bytes(text: str) -> list[Json] | None:
    """None for a token that is part of a character: its text does not tell its bytes."""
    return None if "\ufffd" in text else list(text.encode())
