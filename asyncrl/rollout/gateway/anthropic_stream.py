"""An answer as the events of a streamed message, and the parts that streamed and whole messages share.

message_start, then for each block of content content_block_start, its deltas and content_block_stop, then
message_delta with the reason to stop, and message_stop.
"""

from collections.abc import Iterator, Mapping

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import (
    ErrorType,
    FinishReason,
    ProtocolError,
    ToolCallPiece,
    TurnAnswer,
    TurnDelta,
    TurnStart,
)
from asyncrl.rollout.gateway.server_sent_events import event

STOP_REASONS: Mapping[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES: Mapping[ErrorType, str] = {
    "invalid_request": "invalid_request_error",
    "authentication": "authentication_error",
    "not_found": "not_found_error",
    "conflict": "invalid_request_error",
    "too_large": "request_too_large",
    "rate_limit": "rate_limit_error",
    "server": "api_error",
}
OVERLOADED, TIMED_OUT = 503, 504


class MessageEvents:
    """The events of one answer, in order."""

    def __init__(self) -> None:
        self._num_blocks = 0
        self._open: object = None  # what the open block holds: "text", "thinking" or the index of a call

    def write(self, delta: TurnDelta) -> Iterator[bytes]:
        """The events that a delta adds."""
        if delta.start is not None:
            yield _event("message_start", message=_started(delta.start))
        if delta.reasoning:
            yield from self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._piece({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            yield from self._block("text", {"type": "text", "text": ""})
            yield self._piece({"type": "text_delta", "text": delta.text})
        if delta.tool_call is not None:
            yield from self._call(delta.tool_call)
        if delta.answer is not None:
            yield from self._close()
            yield from _end(delta.answer)

    def fail(self, error: ProtocolError) -> Iterator[bytes]:
        """The event that clients raise an error for."""
        yield event(anthropic_error(error), "error")

    def _call(self, piece: ToolCallPiece) -> Iterator[bytes]:
        yield from self._block(piece.index, {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
        if piece.arguments:
            yield self._piece({"type": "input_json_delta", "partial_json": piece.arguments})

    def _block(self, holds: object, block: dict[str, Json]) -> Iterator[bytes]:
        """Begin a block, unless the open one is it."""
        if self._open == holds and self._open is not None:
            return
        yield from self._close()
        self._open = holds
        yield _event("content_block_start", index=self._num_blocks, content_block=block)

    def _piece(self, delta: dict[str, Json]) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        yield _event("content_block_stop", index=self._num_blocks)
        self._num_blocks += 1
        self._open = None


def message_head(start: TurnStart | TurnAnswer) -> dict[str, Json]:
    """What is known of a message before its content."""
    return {"id": f"msg_{start.id}", "type": "message", "role": "assistant", "model": start.model}


def stop_of(answer: TurnAnswer) -> dict[str, Json]:
    """Why an answer ended."""
    matched = answer.stop_text if answer.finish_reason == "stop" else None
    reason = "stop_sequence" if matched is not None else STOP_REASONS[answer.finish_reason]
    return {"stop_reason": reason, "stop_sequence": matched}


def usage_of(input_tokens: int, output_tokens: int) -> dict[str, Json]:
    """Tokens that the policy read and those that it sampled; what a server had in its cache is not told apart."""
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def anthropic_error(error: ProtocolError) -> dict[str, Json]:
    """The body of an error reply."""
    by_status = {OVERLOADED: "overloaded_error", TIMED_OUT: "timeout_error"}
    type = by_status.get(error.status, ERROR_TYPES[error.type])
    return {"type": "error", "error": {"type": type, "message": error.message}}


def _started(start: TurnStart) -> dict[str, Json]:
    usage = usage_of(start.prompt_tokens, 0)
    return {**message_head(start), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}


def _end(answer: TurnAnswer) -> Iterator[bytes]:
    usage = usage_of(answer.prompt_tokens, answer.completion_tokens)
    yield _event("message_delta", delta=stop_of(answer), usage=usage)
    yield _event("message_stop")


def _event(type: str, **fields: Json) -> bytes:
    return event({"type": type, **fields}, type)
