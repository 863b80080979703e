"""The JSON that an inference server answers and that a client asks: both ends check what comes before they use it."""

import json
import math
import random

from asyncrl.errors import ServerError
from asyncrl.inference.local_engine.generate_body import MAX_SEQUENCES, BodyLimits, GenerateBody, parse
from asyncrl.inference.local_engine.request import RequestRefused
from asyncrl.inference.protocol import Answer, parse_answer, parse_status
from tests.support.fuzz_target import Target, damage_json

VOCAB, CONTEXT = 64, 100


def _valid_answer(draw: random.Random) -> bytes:
    ids = [draw.randrange(VOCAB) for _ in range(draw.choice((0, 1, 5, 20)))]
    finish: dict[str, object] = {"type": draw.choice(("stop", "length", "abort")), "matched": ids[-1] if ids else None}
    meta: dict[str, object] = {
        "finish_reason": finish,
        "output_token_logprobs": [[-0.25, token, None] for token in ids],
        "weight_version": "1.4",
    }
    if ids and draw.random() < 0.5:
        cut = draw.randrange(len(ids) + 1)
        parts = [("1.3", 0, cut), ("1.4", cut, len(ids))]
        meta["weight_versions"] = [{"version": v, "start": start, "end": end} for v, start, end in parts]
    return json.dumps({"output_ids": ids, "meta_info": meta}).encode()


def _sound_answer(answer: Answer) -> None:
    assert all(type(token) is int and token >= 0 for token in answer.token_ids)
    assert len(answer.logprobs) == len(answer.token_ids)
    assert all(type(logprob) in (int, float) and math.isfinite(logprob) for logprob in answer.logprobs)
    assert all(type(run.num_tokens) is int and run.num_tokens > 0 for run in answer.runs)
    assert sum(run.num_tokens for run in answer.runs) == len(answer.token_ids)


def _valid_request(draw: random.Random) -> bytes:
    params = {"max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9, "top_k": draw.choice((-1, 20)), "n": 1}
    params |= {"stop_token_ids": [2], "sampling_seed": draw.getrandbits(63), "stop": ["x"], "min_p": 0.0}
    prompts = [[1, 2, 3], [4]][: draw.choice((1, 2))]
    body: dict[str, object] = {"rid": "r", "return_logprob": True, "logprob_start_len": -1, "stream": False}
    if draw.random() < 0.5:
        body |= {"input_ids": prompts[0], "sampling_params": params}
    else:
        body |= {"input_ids": prompts, "sampling_params": [params] * len(prompts)}
    return json.dumps(body).encode()


_LIMITS = BodyLimits(VOCAB, CONTEXT, 8, lambda text: [len(text) % VOCAB])


def _sound_request(body: GenerateBody) -> None:
    assert 0 < len(body.requests) <= MAX_SEQUENCES
    for request in body.requests:
        assert all(0 <= token < VOCAB for token in request.prompt)
        assert len(request.prompt) + request.limit <= CONTEXT
        # What the engine keeps in arrays of 64 bits; past them its thread, and with it the server, would die.
        assert all(-(2**63) <= token < 2**63 for token in (request.params.top_k, *request.params.stop_token_ids))


def _decode_answer(blob: bytes) -> Answer:
    return parse_answer(json.loads(blob.decode()))


def _decode_status(blob: bytes) -> object:
    return parse_status(json.loads(blob.decode()))


_NOT_JSON = (json.JSONDecodeError, UnicodeDecodeError)

HTTP_TARGETS: dict[str, Target] = {
    "answer": Target((ServerError, *_NOT_JSON), _valid_answer, damage_json, _decode_answer, _sound_answer),
    "status": Target(
        (ServerError, *_NOT_JSON), lambda draw: b"[0, 1, 5, 77, 99, 1000]", damage_json, _decode_status, lambda _: None
    ),
    "request": Target(
        (RequestRefused, *_NOT_JSON),
        _valid_request,
        damage_json,
        lambda blob: parse(json.loads(blob.decode()), _LIMITS),
        _sound_request,
    ),
}
"""By name: a server's answer to /generate, the six numbers of its weight loader, and a request for tokens."""
