"""OpenAI's chat completions: `POST /v1/chat/completions`.

Messages are read into the neutral form: `developer` is `system`, parts of text are joined (an assistant's without
anything between, the others' with line ends). The weight version is shown as `system_fingerprint`.
"""

from collections.abc import AsyncIterator

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import (
    AskedSampling,
    ProtocolError,
    TurnAnswer,
    TurnDelta,
    TurnRequest,
)
from asyncrl.rollout.gateway.openai_chat_stream import ChatEvents, usage_of
from asyncrl.rollout.gateway.openai_errors import openai_error
from asyncrl.rollout.gateway.openai_logprobs import token_logprobs
from asyncrl.rollout.gateway.openai_tools import read_calls_allowed, read_nested_tools
from asyncrl.rollout.gateway.request_fields import (
    FieldTable,
    Object,
    Refused,
    check_turn,
    names,
    read_count,
    read_flag,
    read_name,
    read_number,
    read_object,
    read_objects,
    read_parts,
    read_stops,
    read_text,
    unexpected,
)
from asyncrl.rollout.gateway.server_sent_events import written

SAMPLED_AS_IS = "Tokens are sampled from the policy as it is: other probabilities than its own would be trained on."
FIELDS = FieldTable(
    read=names(
        "model messages tools tool_choice temperature top_p max_tokens max_completion_tokens stop logprobs stream "
        "stream_options"
    ),
    ignored=names(
        "metadata moderation parallel_tool_calls prediction prompt_cache_key prompt_cache_options "
        "prompt_cache_retention reasoning_effort safety_identifier seed service_tier store user verbosity"
    ),
    refused={
        "n": Refused((1,), "A session is one conversation, so a request has one answer: leave n out or ask again."),
        "top_logprobs": Refused((0,), "Only the logprobs of sampled tokens are kept: leave top_logprobs out."),
        "logit_bias": Refused(({},), SAMPLED_AS_IS),
        "frequency_penalty": Refused((0,), SAMPLED_AS_IS),
        "presence_penalty": Refused((0,), SAMPLED_AS_IS),
        "response_format": Refused(({"type": "text"},), SAMPLED_AS_IS),
        "modalities": Refused((["text"],), "The policy writes text only."),
        "audio": Refused((), "The policy writes text only."),
        "functions": Refused(([],), "Use tools, their successor."),
        "function_call": Refused(("auto", "none"), "Use tool_choice, its successor."),
        "web_search_options": Refused((), "Nothing here searches the web: give the policy a tool for it."),
    },
)


class OpenAIChat:
    """The translator of chat completions."""

    path = "/v1/chat/completions"

    def parse(self, body: Object) -> TurnRequest:
        """Read a request body; raises ProtocolError."""
        FIELDS.check(body)
        options = read_object(body.get("stream_options") or {}, "stream_options")
        messages = [_message(message, at) for at, message in read_objects(body.get("messages"), "messages")]
        return TurnRequest(
            messages=check_turn(messages, "messages"),
            tools=read_nested_tools(body.get("tools")),
            sampling=AskedSampling(
                temperature=read_number(body.get("temperature"), "temperature", 0, 2),
                top_p=read_number(body.get("top_p"), "top_p", 1e-6, 1),
                max_tokens=read_count(body.get("max_completion_tokens"), "max_completion_tokens")
                or read_count(body.get("max_tokens"), "max_tokens"),
                stop=read_stops(body.get("stop"), "stop"),
                logprobs=read_flag(body.get("logprobs"), "logprobs"),
            ),
            stream=read_flag(body.get("stream"), "stream"),
            model=read_name(body.get("model"), "model"),
            parses_tool_calls=read_calls_allowed(body.get("tool_choice")),
            shows_usage=read_flag(options.get("include_usage"), "stream_options.include_usage"),
        )

    def render(self, answer: TurnAnswer, request: TurnRequest) -> dict[str, Json]:
        """The body of the reply to a request without `stream`."""
        choice: dict[str, Json] = {
            "index": 0,
            "message": message_of(answer),
            "logprobs": {"content": token_logprobs(answer), "refusal": None} if request.sampling.logprobs else None,
            "finish_reason": answer.finish_reason,
        }
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": answer.created_s,
            "model": answer.model,
            "system_fingerprint": answer.weight_version,
            "choices": [choice],
            "usage": usage_of(answer),
        }

    def stream(self, deltas: AsyncIterator[TurnDelta], request: TurnRequest) -> AsyncIterator[bytes]:
        """The reply to a request with `stream`."""
        return written(deltas, ChatEvents(request))

    def render_error(self, error: ProtocolError) -> dict[str, Json]:
        """The body of an error reply."""
        return openai_error(error)


def message_of(answer: TurnAnswer) -> dict[str, Json]:
    """An answer as the message that its client sends back. Content is null beside calls if there is no text."""
    message: dict[str, Json] = {
        "role": "assistant",
        "content": answer.text or (None if answer.tool_calls else ""),
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [call.to_json() for call in answer.tool_calls]
    return message


def _message(message: Object, path: str) -> dict[str, Json]:
    role = message.get("role")
    if role == "assistant":
        return _assistant(message, path)
    content = read_parts(message.get("content"), f"{path}.content", ("text",), "\n")
    if role == "tool":
        call_id = read_name(message.get("tool_call_id"), f"{path}.tool_call_id")
        return {"role": "tool", "tool_call_id": call_id, "content": content}
    if role not in ("system", "developer", "user"):
        raise unexpected(f"{path}.role", role, "system, developer, user, assistant or tool")
    return {"role": "user" if role == "user" else "system", "content": content}


def _assistant(message: Object, path: str) -> dict[str, Json]:
    for name in ("function_call", "audio"):
        if message.get(name) is not None:
            raise unexpected(f"{path}.{name}", message[name], "no such field: calls go into tool_calls")
    read: dict[str, Json] = {
        "role": "assistant",
        "content": read_parts(message.get("content"), f"{path}.content", ("text", "refusal"), ""),
    }
    reasoning = message.get("reasoning_content")
    if reasoning is not None:
        read["reasoning_content"] = read_text(reasoning, f"{path}.reasoning_content")
    calls: list[Json] = [_call(call, at) for at, call in read_objects(message.get("tool_calls"), f"{path}.tool_calls")]
    if calls:
        read["tool_calls"] = calls
    return read


def _call(call: Object, path: str) -> dict[str, Json]:
    if call.get("type", "function") != "function":
        raise unexpected(f"{path}.type", call["type"], '"function"')
    function = read_object(call.get("function"), f"{path}.function")
    name = read_name(function.get("name"), f"{path}.function.name")
    arguments = read_text(function.get("arguments"), f"{path}.function.arguments")
    return {
        "id": read_name(call.get("id"), f"{path}.id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
