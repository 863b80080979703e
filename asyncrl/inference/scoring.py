"""What a server says about tokens that it did not sample: their logprobs, and its own likeliest ones beside them.

SGLang scores a prompt when it is asked for no token (`max_new_tokens: 0`), always at temperature 1. An answer is
checked before anyone sees it, as in `protocol`: a logprob of another token would be learned from without any error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.errors import ServerError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer
from asyncrl.inference.protocol import raise_if_refused

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """Tokens to score.

    Attributes:
        rid: request id, of ServerClient.next_rid.
        token_ids: at least two.
        first: first position that is scored, at least 1: nothing precedes the first token.
    """

    rid: str
    token_ids: Sequence[int]
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Of the tokens from `first` on, S of them. All logprobs in nats, at temperature 1, over the whole vocabulary.

    Attributes:
        logprobs_S: float32, of the tokens themselves.
        top_logprobs_SK: float32, of the K likeliest tokens at each place, likeliest first; K may be 0.
        top_ids_SK: int32, which ones these are.
    """

    logprobs_S: Floats
    top_logprobs_SK: Floats
    top_ids_SK: Ints


class ScoringClient(ServerClient):
    """A server that scores tokens beside what ServerClient asks of it."""

    async def score(
        self, questions: Sequence[ScoreQuestion], *, num_top: int, vocab_size: int, deadline_s: float
    ) -> list[Scores | ServerError]:
        """Score all of them in one request: the scores of each, or what is wrong with them.

        Args:
            num_top: likeliest tokens wanted at each place; 0: none.
            vocab_size: see parse_scores.
            deadline_s: seconds until the request is given up.
        Raises:
            RequestRefused: the server's 4xx for all of them, with its text.
            ServerUnavailable: dropped, busy, timed out, 5xx.
            MalformedAnswer: not as many answers as questions.
        """
        path = f"{self.url}/generate"
        bodies = await self._call("POST", "/generate", score_request(questions, num_top=num_top), deadline_s)
        if not isinstance(bodies, list) or len(bodies) != len(questions):
            raise MalformedAnswer(
                "shape", f"{path}: expected scores of {len(questions)} rows, found {str(bodies)[:200]}"
            )
        found: list[Scores | ServerError] = []
        for body, question in zip(bodies, questions, strict=True):
            try:
                found.append(parse_scores(body, question, num_top=num_top, vocab_size=vocab_size, path=path))
            except ServerError as error:
                found.append(error)
        return found


def score_request(questions: Sequence[ScoreQuestion], *, num_top: int) -> dict[str, object]:
    """The body of one /generate call that scores all of them."""
    sampling = {"max_new_tokens": 0, "temperature": 1.0}
    body: dict[str, object] = {
        "input_ids": [list(question.token_ids) for question in questions],
        "sampling_params": [sampling] * len(questions),
        "rid": [question.rid for question in questions],
        "return_logprob": True,
        # The entry at the start has no logprob: it only says what the first scored token follows.
        "logprob_start_len": [question.first - 1 for question in questions],
        "stream": False,
    }
    if num_top:
        body["top_logprobs_num"] = [num_top] * len(questions)
    return body


def parse_scores(
    body: Mapping[str, Any], question: ScoreQuestion, *, num_top: int, vocab_size: int, path: str = "/generate"
) -> Scores:
    """Check the answer to one question.

    Args:
        vocab_size: of the model that learns from the scores; a likeliest token at or above it could not be looked up.
    Raises:
        RequestRefused, ServerUnavailable: an abort under HTTP 200 that carries a status.
        MalformedAnswer: missing, of other tokens, or not finite; its reason is what to count it under.
    """
    try:
        meta = body["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise_if_refused(meta["finish_reason"], path)
            raise MalformedAnswer("aborted", f"{path}: scoring was aborted: {str(meta['finish_reason'])[:200]}.")
        expected = [int(token) for token in question.token_ids[question.first :]]
        logprobs_S = _own(meta["input_token_logprobs"], expected, path)
        top = _top(meta["input_top_logprobs"], len(expected), num_top, vocab_size, path) if num_top else ([], [])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MalformedAnswer(
            "shape", f"{path}: the scores are not what they should be ({error!r:.200}); they cannot be used."
        ) from error
    return Scores(
        logprobs_S,
        np.array(top[0], dtype=np.float32).reshape(len(expected), num_top),
        np.array(top[1], dtype=np.int32).reshape(len(expected), num_top),
    )


def _own(entries: Sequence[Sequence[Any]], expected: list[int], path: str) -> Floats:
    found = [entry[1] for entry in entries[1:]]
    if found != expected:
        raise MalformedAnswer(
            "mismatched_logprobs",
            f"{path}: {len(expected)} tokens were to be scored, {len(found)} were, or others (asked {expected[:5]}..., "
            f"found {found[:5]}...): a token would learn from the logprob of another, so the scores are dropped.",
        )
    logprobs_S = np.array([_finite(entry[0], path) for entry in entries[1:]], dtype=np.float32)
    return logprobs_S


def _top(
    places: Sequence[Sequence[Sequence[Any]]], num_places: int, num_top: int, vocab_size: int, path: str
) -> tuple[list[list[float]], list[list[int]]]:
    places = places[1:]
    if len(places) != num_places or any(len(place) != num_top for place in places):
        sizes = [len(place) for place in places][:5]
        raise MalformedAnswer(
            "top_logprobs",
            f"{path}: {num_top} likeliest tokens at {num_places} places were asked for, found {sizes}... at "
            f"{len(places)}; the scores are dropped.",
        )
    ids = [[entry[1] for entry in place] for place in places]
    if any(type(token) is not int or not 0 <= token < vocab_size for place in ids for token in place):
        raise MalformedAnswer(
            "top_ids",
            f"{path}: a likeliest token is outside the vocabulary of {vocab_size}: teacher and model.path have "
            "different tokenizers, or the teacher's vocabulary is padded and it prefers the padding.",
        )
    return [[_finite(entry[0], path) for entry in place] for place in places], ids


def _finite(logprob: object, path: str) -> float:
    if not isinstance(logprob, int | float) or isinstance(logprob, bool) or not math.isfinite(logprob):
        raise MalformedAnswer("logprob_not_finite", f"{path}: a logprob is {logprob!r}; the scores are dropped.")
    return float(logprob)
