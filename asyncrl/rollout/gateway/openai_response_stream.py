"""An answer as the events of a streamed response.

response.created, then each item: output_item.added, its pieces, output_item.done; then response.completed with the
whole response (response.incomplete if it was cut at its length). Logprobs stand in that last one only.
"""

from collections.abc import Iterator

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import (
    ProtocolError,
    ToolCall,
    ToolCallPiece,
    TurnAnswer,
    TurnDelta,
    TurnRequest,
    TurnStart,
)
from asyncrl.rollout.gateway.openai_errors import openai_error
from asyncrl.rollout.gateway.openai_response_body import begun_response, failed_response, whole_response
from asyncrl.rollout.gateway.openai_response_items import COMPLETED, INCOMPLETE
from asyncrl.rollout.gateway.openai_response_open_items import OpenCall, OpenItem, OpenReasoning, OpenText
from asyncrl.rollout.gateway.server_sent_events import event


class ResponseEvents:
    """The events of one answer, in order."""

    def __init__(self, request: TurnRequest) -> None:
        self._request = request
        self._start: TurnStart | None = None
        self._num_events = self._num_items = 0
        self._open: OpenItem | None = None

    def write(self, delta: TurnDelta) -> Iterator[bytes]:
        """The events that a delta adds."""
        if delta.start is not None:
            self._start = delta.start
            begun = begun_response(delta.start, self._request)
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
        if delta.reasoning:
            yield from self._add(OpenReasoning(self._id), delta.reasoning)
        if delta.text:
            yield from self._add(OpenText(self._id), delta.text)
        if delta.tool_call is not None:
            yield from self._add(_opened(delta.tool_call), delta.tool_call.arguments)
        if delta.answer is not None:
            yield from self._end(delta.answer)

    def fail(self, error: ProtocolError) -> Iterator[bytes]:
        """The event that says that the answer will not come."""
        if self._start is None:
            yield event(openai_error(error))
        else:
            yield self._event("response.failed", response=failed_response(self._start, self._request, error))

    @property
    def _id(self) -> str:
        assert self._start is not None  # the first delta is the start
        return self._start.id

    def _add(self, item: OpenItem, piece: str) -> Iterator[bytes]:
        """A piece of an item, which is begun unless it is the open one."""
        if self._open is None or self._open.place != item.place:
            yield from self._close(COMPLETED)
            self._open = item
            yield from self._of_item(item.begun())
        if piece:
            self._open.text += piece
            yield from self._of_item([self._open.delta(piece)])

    def _end(self, answer: TurnAnswer) -> Iterator[bytes]:
        status = INCOMPLETE if answer.finish_reason == "length" else COMPLETED
        if not self._num_items and self._open is None:
            yield from self._add(OpenText(self._id), "")
        yield from self._close(status)
        yield self._event(f"response.{status}", response=whole_response(answer, self._request))

    def _close(self, status: str) -> Iterator[bytes]:
        if self._open is not None:
            yield from self._of_item(self._open.done(status))
            self._num_items += 1
            self._open = None

    def _of_item(self, events: list[dict[str, Json]]) -> Iterator[bytes]:
        for fields in events:
            yield self._event(output_index=self._num_items, **fields)

    def _event(self, type: Json, **fields: Json) -> bytes:
        data: dict[str, Json] = {"type": type, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event(data, str(type))


def _opened(piece: ToolCallPiece) -> OpenCall:
    return OpenCall(ToolCall(piece.id, piece.name, ""), piece.index)
