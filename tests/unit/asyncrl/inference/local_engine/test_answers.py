"""The text of an answer says what the request has: every number, and every field."""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncrl.inference.local_engine.answers import answer
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling_params import SamplingParams
from asyncrl.inference.local_engine.service import Ticket
from tests.support.event_loop import in_event_loop

TOKENS = [5, 0, 31]


def said_of(
    prompt_logprobs: Sequence[float | None], logprobs: Sequence[float], *, index: int | None = None
) -> dict[str, Any]:
    request = Request("r", [1, 2, 3], SamplingParams(), logprob_start=0, prompt_logprobs=list(prompt_logprobs))
    request.mark_version("0.4", 0)
    request.finish = {"type": "length", "length": len(logprobs)}
    done: asyncio.Future[Request] = asyncio.get_running_loop().create_future()
    done.set_result(request)
    ticket = Ticket(request, done, output=TOKENS[: len(logprobs)], logprobs=list(logprobs))
    text = answer(ticket, None, version="0.5", with_logprobs=True, text_in_logprobs=False, index=index)
    said: dict[str, Any] = json.loads(text)
    return said


@in_event_loop
async def test_each_float32_comes_back_as_itself() -> None:
    source = np.random.default_rng(0)
    bits = source.integers(0, 2**32, 30_000, dtype=np.uint32).view(np.float32)
    values = bits[np.isfinite(bits)].tolist()
    for start in range(0, len(values) - 3, 3):
        entries = said_of([], values[start : start + 3])["meta_info"]["output_token_logprobs"]
        assert [np.float32(logprob) for logprob, _, _ in entries] == values[start : start + 3]
        assert [token for _, token, _ in entries] == TOKENS


@in_event_loop
async def test_the_fields_are_those_of_the_request() -> None:
    said = said_of([None, -0.5, -2.0], [-1.0, -0.25], index=7)
    meta = said.pop("meta_info")
    assert said == {"text": "", "output_ids": TOKENS[:2], "index": 7}
    assert meta["input_token_logprobs"] == [[None, 1, None], [-0.5, 2, None], [-2.0, 3, None]]
    assert meta["output_token_logprobs"] == [[-1.0, 5, None], [-0.25, 0, None]]
    assert (meta["id"], meta["prompt_tokens"], meta["weight_version"]) == ("r", 3, "0.4")
    assert meta["output_token_logprobs_length"] == meta["completion_tokens"] == 2
    assert meta["finish_reason"] == {"type": "length", "length": 2}
    assert "index" not in said_of([], [])


@in_event_loop
@pytest.mark.parametrize("prompt", [[], [None], [-0.5], [None, -0.5], [-0.5, None]])
async def test_prompts_of_any_length_are_written(prompt: list[float | None]) -> None:
    entries = said_of(prompt, [])["meta_info"]["input_token_logprobs"]
    assert entries == [[logprob, token, None] for logprob, token in zip(prompt, [1, 2, 3], strict=False)]


@in_event_loop
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
async def test_what_is_no_finite_number_is_written_as_json_does(odd: float) -> None:
    ((logprob, token, _),) = said_of([], [odd])["meta_info"]["output_token_logprobs"]
    assert token == 5
    assert logprob == odd or (math.isnan(logprob) and math.isnan(odd))
