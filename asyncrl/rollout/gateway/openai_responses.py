"""OpenAI's responses: `POST /v1/responses`, with the whole conversation in each request.

Nothing is stored under a response's id, so `previous_response_id` is refused: a session is one conversation, and its
rows are found by what the requests hold.
"""

from collections.abc import AsyncIterator

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import AskedSampling, ProtocolError, TurnAnswer, TurnDelta, TurnRequest
from asyncrl.rollout.gateway.openai_errors import openai_error
from asyncrl.rollout.gateway.openai_response_body import whole_response
from asyncrl.rollout.gateway.openai_response_items import Messages, read_input
from asyncrl.rollout.gateway.openai_response_stream import ResponseEvents
from asyncrl.rollout.gateway.openai_tools import read_calls_allowed, read_flat_tools
from asyncrl.rollout.gateway.request_fields import (
    FieldTable,
    Object,
    Refused,
    check_turn,
    invalid,
    names,
    read_count,
    read_flag,
    read_list,
    read_name,
    read_number,
    read_object,
    read_text,
)
from asyncrl.rollout.gateway.server_sent_events import written

WHOLE_INPUT = "Nothing is stored here: send the whole conversation as input."
FIELDS = FieldTable(
    read=names("model input instructions tools tool_choice temperature top_p max_output_tokens include text stream"),
    ignored=names(
        "metadata moderation parallel_tool_calls prompt_cache_key prompt_cache_options prompt_cache_retention "
        "reasoning safety_identifier service_tier store stream_options truncation user access_programs "
        "background_options image"
    ),
    refused={
        "previous_response_id": Refused((), WHOLE_INPUT),
        "conversation": Refused((), WHOLE_INPUT),
        "prompt": Refused((), WHOLE_INPUT),
        "background": Refused((False,), "An answer is given to the request that asks for it: leave background out."),
        "context_management": Refused(([],), "Contexts are the client's to manage here."),
        "max_tool_calls": Refused((), "Tools are the client's to call here."),
        "top_logprobs": Refused((0,), "Only the logprobs of sampled tokens are kept: leave top_logprobs out."),
    },
)
LOGPROBS = "message.output_text.logprobs"


class OpenAIResponses:
    """The translator of responses."""

    path = "/v1/responses"

    def parse(self, body: Object) -> TurnRequest:
        """Read a request body; raises ProtocolError."""
        FIELDS.check(body)
        _check_format(body.get("text"))
        messages: Messages = []
        if body.get("instructions") is not None:
            messages.append({"role": "system", "content": read_text(body["instructions"], "instructions")})
        included = read_list(body.get("include") or [], "include")
        return TurnRequest(
            messages=check_turn(messages + read_input(body.get("input")), "input"),
            tools=read_flat_tools(body.get("tools")),
            sampling=AskedSampling(
                temperature=read_number(body.get("temperature"), "temperature", 0, 2),
                top_p=read_number(body.get("top_p"), "top_p", 1e-6, 1),
                max_tokens=read_count(body.get("max_output_tokens"), "max_output_tokens"),
                logprobs=LOGPROBS in included,
            ),
            stream=read_flag(body.get("stream"), "stream"),
            model=read_name(body.get("model"), "model"),
            parses_tool_calls=read_calls_allowed(body.get("tool_choice")),
        )

    def render(self, answer: TurnAnswer, request: TurnRequest) -> dict[str, Json]:
        """The body of the reply to a request without `stream`."""
        return whole_response(answer, request)

    def stream(self, deltas: AsyncIterator[TurnDelta], request: TurnRequest) -> AsyncIterator[bytes]:
        """The reply to a request with `stream`."""
        return written(deltas, ResponseEvents(request))

    def render_error(self, error: ProtocolError) -> dict[str, Json]:
        """The body of an error reply."""
        return openai_error(error)


def _check_format(text: Json) -> None:
    format = read_object(read_object(text or {}, "text").get("format") or {}, "text.format")
    if format.get("type", "text") != "text":
        raise invalid("text.format: nothing here constrains what the policy samples; ask for the form in the prompt.")
