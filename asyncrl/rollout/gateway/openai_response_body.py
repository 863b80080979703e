"""The object that OpenAI's responses protocol has for a response: whole, in the making, and failed."""

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import ProtocolError, TurnAnswer, TurnRequest, TurnStart
from asyncrl.rollout.gateway.openai_response_items import COMPLETED, IN_PROGRESS, INCOMPLETE, items_of


def whole_response(answer: TurnAnswer, request: TurnRequest) -> dict[str, Json]:
    """The response of an answer; one that was cut at its length is `incomplete`."""
    was_cut = answer.finish_reason == "length"
    return {
        **_response(answer, request, INCOMPLETE if was_cut else COMPLETED),
        "incomplete_details": {"reason": "max_output_tokens"} if was_cut else None,
        "output": items_of(answer, with_logprobs=request.sampling.logprobs),
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def begun_response(start: TurnStart, request: TurnRequest) -> dict[str, Json]:
    """The response before its first item."""
    return _response(start, request, IN_PROGRESS)


def failed_response(start: TurnStart, request: TurnRequest, error: ProtocolError) -> dict[str, Json]:
    """The response whose answer will not come."""
    code = "rate_limit_exceeded" if error.type == "rate_limit" else "server_error"
    return {**_response(start, request, "failed"), "error": {"code": code, "message": error.message}}


def _response(named: TurnStart | TurnAnswer, request: TurnRequest, status: str) -> dict[str, Json]:
    sampling = request.sampling
    return {
        "id": f"resp_{named.id}",
        "object": "response",
        "created_at": named.created_s,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": sampling.max_tokens,
        "metadata": {},
        "model": named.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if request.parses_tool_calls else "none",
        "tools": [_flat(tool["function"]) for tool in request.tools],
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _flat(function: Json) -> dict[str, Json]:
    assert isinstance(function, dict)  # the request was parsed
    return {"type": "function", "strict": None, "parameters": None, **function}
