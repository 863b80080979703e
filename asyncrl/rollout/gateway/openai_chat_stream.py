"""An answer as the chunks of a streamed chat completion.

The logprobs come with the chunk that has the finish reason, all in one: clients join those of all chunks.
"""

from collections.abc import Iterator

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import ProtocolError, ToolCallPiece, TurnAnswer, TurnDelta, TurnRequest
from asyncrl.rollout.gateway.openai_errors import openai_error
from asyncrl.rollout.gateway.openai_logprobs import token_logprobs
from asyncrl.rollout.gateway.server_sent_events import event

DONE = b"data: [DONE]\n\n"


class ChatEvents:
    """The events of one answer, in order."""

    def __init__(self, request: TurnRequest) -> None:
        self._request = request
        self._head: dict[str, Json] = {}

    def write(self, delta: TurnDelta) -> Iterator[bytes]:
        """The chunks that a delta adds."""
        if delta.start is not None:
            self._head = {
                "id": f"chatcmpl-{delta.start.id}",
                "object": "chat.completion.chunk",
                "created": delta.start.created_s,
                "model": delta.start.model,
            }
            yield self._chunk({"role": "assistant", "content": ""})
        if delta.reasoning:
            yield self._chunk({"reasoning_content": delta.reasoning})
        if delta.text:
            yield self._chunk({"content": delta.text})
        if delta.tool_call is not None:
            yield self._chunk({"tool_calls": [_call(delta.tool_call)]})
        if delta.answer is not None:
            yield from self._end(delta.answer)

    def fail(self, error: ProtocolError) -> Iterator[bytes]:
        """The event that clients raise an error for."""
        yield event(openai_error(error))

    def _end(self, answer: TurnAnswer) -> Iterator[bytes]:
        self._head["system_fingerprint"] = answer.weight_version
        yield self._chunk({}, answer)
        if self._request.shows_usage:
            yield event({**self._head, "choices": [], "usage": usage_of(answer)})
        yield DONE

    def _chunk(self, delta: dict[str, Json], answer: TurnAnswer | None = None) -> bytes:
        choice: dict[str, Json] = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None if answer is None else answer.finish_reason,
        }
        if answer is not None and self._request.sampling.logprobs:
            choice["logprobs"] = {"content": token_logprobs(answer), "refusal": None}
        return event({**self._head, "choices": [choice]})


def usage_of(answer: TurnAnswer) -> dict[str, Json]:
    """Tokens that the policy read and those that it sampled."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _call(piece: ToolCallPiece) -> dict[str, Json]:
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function: dict[str, Json] = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
