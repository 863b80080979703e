"""A teacher's server without a server: its logprob of a token is a pure function of token and position."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

import numpy as np

from asyncrl.errors import ServerError
from asyncrl.inference.errors import RequestRefused
from asyncrl.inference.protocol import ModelInfo
from asyncrl.inference.scoring import ScoreQuestion, Scores, ScoringClient


def logprob(token: int, position: int) -> float:
    """What it says of a token."""
    return -float(token + 100 * position)


class ScriptedTeacher:
    """Attributes:
    script: what goes wrong with the next requests, in order; None: nothing.
    refused: token ids of a row that it refuses, and every request with it.
    requests: rows of each request.
    asked: set by the first request.
    gate: closed, requests wait at it.
    """

    def __init__(self, script: Sequence[ServerError | None] = (), refused: Sequence[int] = ()) -> None:
        self.url = "http://teacher"
        self.script, self.refused = deque(script), list(refused)
        self.requests: list[list[list[int]]] = []
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def as_client(self) -> ScoringClient:
        return cast(ScoringClient, self)

    def next_rid(self) -> str:
        return "r"

    async def model_info(self) -> ModelInfo:
        return ModelInfo("teacher", "0.0")

    async def score(
        self, questions: Sequence[ScoreQuestion], *, num_top: int, vocab_size: int, deadline_s: float
    ) -> list[Scores | ServerError]:
        self.requests.append([list(question.token_ids) for question in questions])
        self.asked.set()
        await self.gate.wait()
        trouble = self.script.popleft() if self.script else None
        if trouble is not None:
            raise trouble
        if any(list(question.token_ids) == self.refused for question in questions):
            raise RequestRefused("one of the rows is too long")
        return [_scores(question, num_top) for question in questions]

    async def close(self) -> None:
        pass


def _scores(question: ScoreQuestion, num_top: int) -> Scores:
    places = range(question.first, len(question.token_ids))
    logprobs = np.array([logprob(question.token_ids[place], place) for place in places], dtype=np.float32)
    ids = np.array([[place + rank for rank in range(num_top)] for place in places], dtype=np.int32)
    return Scores(logprobs, -ids.astype(np.float32), ids)
