"""A finished or streamed request -> the JSON object that SGLang would answer with, as text.

Nearly all of an answer is a number and an id for each token, which are written here: `json` takes twice as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import chain

from asyncrl.inference.local_engine.asgi import to_json
from asyncrl.inference.local_engine.request import QUEUE_ABORT, Request
from asyncrl.inference.local_engine.service import Ticket
from asyncrl.inference.local_engine.text import TextCodec

Json = dict[str, object]


def answer(
    ticket: Ticket,
    codec: TextCodec | None,
    *,
    version: str,
    with_logprobs: bool,
    text_in_logprobs: bool,
    index: int | None = None,
) -> str:
    """JSON of one object of an answer: final if the request has finished, else a cumulative stream chunk.

    Args:
        ticket: of the request; its output as far as it has been reported.
        codec: for `text`; without one the text is empty.
        version: the server's weight version, which a request aborted in the queue reports.
        with_logprobs: whether logprobs were asked for.
        text_in_logprobs: whether each logprob entry spells its token.
        index: of the request in its batch; None: it is not said.
    """
    request, output = ticket.request, ticket.output
    finish = request.finish if ticket.done.done() else None
    meta: Json = {"id": request.rid, "finish_reason": finish}
    if finish is not None and finish.get("message") == QUEUE_ABORT:
        # SGLang's queue answers by itself here, and knows less than its scheduler.
        meta |= {"weight_version": version, "completion_tokens": len(output)}
    else:
        meta |= {
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(output),
            "cached_tokens": request.cached_tokens,
            "cached_tokens_details": None,
            "num_retractions": request.num_retractions,
            "reasoning_tokens": 0,
            "dp_rank": 0,
        }
        if finish is not None:
            spans = request.spans(len(output))
            meta["weight_version"] = spans[-1].version
            meta["weight_versions"] = [{"version": s.version, "start": s.start, "end": s.end} for s in spans]
    written = ""
    if with_logprobs:
        spell = codec if text_in_logprobs else None
        start = len(request.prompt) if request.logprob_start is None else request.logprob_start
        if request.num_top and request.logprob_start is not None:
            meta["input_top_logprobs"] = [None if top is None else _top(top, spell) for top in request.prompt_top]
            meta["output_top_logprobs"] = []  # none was sampled: see generate_body
        meta["output_token_logprobs_length"] = len(output)
        for name, logprobs, tokens in (
            ("input_token_logprobs", request.prompt_logprobs, request.prompt[start:]),
            ("output_token_logprobs", ticket.logprobs, output),
        ):
            written += f',"{name}":{_written(logprobs, tokens, spell)}'
    now = time.time()
    meta["e2e_latency"] = now - ticket.received_s
    meta["response_sent_to_client_ts"] = now
    said: Json = {"text": _text(request, output, codec), "output_ids": output}
    if index is not None:
        said["index"] = index
    said["meta_info"] = meta  # last, for what is written to follow in it
    return f"{to_json(said)[:-2]}{written}}}}}"


def _written(logprobs: Sequence[float | None], tokens: Sequence[int], spell: TextCodec | None) -> str:
    """JSON of the entries. Nine digits: they are float32, of which each has its own nine."""
    if not logprobs:
        return "[]"
    if spell is not None:
        return to_json(_entries(logprobs, tokens, spell))
    first, rest = "", logprobs
    if logprobs[0] is None:  # the prompt's first token has none
        first, rest = f"[null,{tokens[0]},null]", logprobs[1:]
    numbers = [logprob for logprob in rest if logprob is not None]
    if len(numbers) < len(rest) or not all(map(math.isfinite, numbers)):
        return to_json(_entries(logprobs, tokens, None))
    pairs = tuple(chain.from_iterable(zip(numbers, tokens[len(logprobs) - len(rest) :], strict=False)))
    text = ",".join(["[%.9g,%d,null]"] * (len(pairs) // 2)) % pairs
    return f"[{first},{text}]" if first and text else f"[{first}{text}]"


def _entries(logprobs: Sequence[float | None], tokens: Sequence[int], spell: TextCodec | None) -> list[object]:
    if spell is None:
        return [(logprob, token, None) for logprob, token in zip(logprobs, tokens, strict=False)]
    return [
        (logprob, token, spell.decode([token], skip_special_tokens=False))
        for logprob, token in zip(logprobs, tokens, strict=False)
    ]


def _top(entries: Sequence[tuple[float, int]], spell: TextCodec | None) -> list[object]:
    return _entries([logprob for logprob, _ in entries], [token for _, token in entries], spell)


def _text(request: Request, output: Sequence[int], codec: TextCodec | None) -> str:
    if codec is None:
        return ""
    params = request.params
    matched = request.finish.get("matched") if request.finish is not None else None
    trim = matched is not None and not params.no_stop_trim
    if trim and isinstance(matched, int) and output and output[-1] == matched:
        output = output[:-1]
    text = codec.decode(output, skip_special_tokens=params.skip_special_tokens)
    if trim and isinstance(matched, str):
        at = text.find(matched)
        text = text if at < 0 else text[:at]
    return text
