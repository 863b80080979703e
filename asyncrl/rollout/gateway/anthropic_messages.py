"""Anthropic's messages: `POST /v1/messages`, and `/v1/messages/count_tokens`.

Content blocks are read into the neutral form: an assistant's blocks of text are joined without anything between, its
`tool_use` blocks are calls and its `thinking` is reasoning; a user's blocks of text are joined with line ends, and each
`tool_result` is a message of its own, in order.
"""

import json
from collections.abc import AsyncIterator

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.anthropic_stream import MessageEvents, anthropic_error, message_head, stop_of, usage_of
from asyncrl.rollout.gateway.conversation import (
    AskedSampling,
    ProtocolError,
    ToolCall,
    TurnAnswer,
    TurnDelta,
    TurnRequest,
)
from asyncrl.rollout.gateway.openai_tools import NO_FORCING
from asyncrl.rollout.gateway.request_fields import (
    FieldTable,
    Object,
    Refused,
    check_turn,
    invalid,
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

FIELDS = FieldTable(
    read=names(
        "model messages system tools tool_choice temperature top_p max_tokens stop_sequences stream output_config"
    ),
    ignored=names(
        "metadata service_tier thinking context_management cache_control inference_geo user_profile_id workspace_id "
        "speed diagnostics betas billing_policy fallbacks fallback_credit_token"
    ),
    refused={
        "top_k": Refused((-1, 0), "Use rollout.top_k: it holds for the whole run."),
        "container": Refused((), "Nothing here runs code: give the policy a tool for it."),
        "mcp_servers": Refused(([],), "Nothing here calls MCP servers: let the client call them."),
        "thread": Refused((), "Nothing is stored here: send the whole conversation as messages."),
        "compaction": Refused((), "Contexts are the client's to compact here."),
    },
)


class AnthropicMessages:
    """The translator of messages."""

    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"

    def parse(self, body: Object) -> TurnRequest:
        """Read a request body; raises ProtocolError."""
        if body.get("max_tokens") is None:
            raise invalid("max_tokens: found nothing, expected an integer of at least 1.")
        return self.parse_count(body)

    def parse_count(self, body: Object) -> TurnRequest:
        """Read a body of `count_path`: one that need not say how long the answer may be; raises ProtocolError."""
        FIELDS.check(body)
        if read_object(body.get("output_config") or {}, "output_config").get("format") is not None:
            raise invalid("output_config.format: nothing here constrains what the policy samples; ask in the prompt.")
        system = read_parts(body.get("system"), "system", ("text",), "\n")
        messages: list[dict[str, Json]] = [{"role": "system", "content": system}] if system else []
        for at, message in read_objects(body.get("messages"), "messages"):
            messages += _messages(message, at)
        return TurnRequest(
            messages=check_turn(messages, "messages"),
            tools=tuple(_tool(tool, at) for at, tool in read_objects(body.get("tools"), "tools")),
            sampling=AskedSampling(
                temperature=read_number(body.get("temperature"), "temperature", 0, 1),
                top_p=read_number(body.get("top_p"), "top_p", 1e-6, 1),
                max_tokens=read_count(body.get("max_tokens"), "max_tokens"),
                stop=read_stops(body.get("stop_sequences"), "stop_sequences"),
            ),
            stream=read_flag(body.get("stream"), "stream"),
            model=read_name(body.get("model"), "model"),
            parses_tool_calls=_calls_allowed(body.get("tool_choice")),
        )

    def render(self, answer: TurnAnswer, request: TurnRequest) -> dict[str, Json]:
        """The body of the reply to a request without `stream`."""
        return {
            **message_head(answer),
            "content": content_of(answer),
            **stop_of(answer),
            "usage": usage_of(answer.prompt_tokens, answer.completion_tokens),
        }

    def render_count(self, num_tokens: int) -> dict[str, Json]:
        """The body of the reply of `count_path`."""
        return {"input_tokens": num_tokens}

    def stream(self, deltas: AsyncIterator[TurnDelta], request: TurnRequest) -> AsyncIterator[bytes]:
        """The reply to a request with `stream`."""
        return written(deltas, MessageEvents())

    def render_error(self, error: ProtocolError) -> dict[str, Json]:
        """The body of an error reply."""
        return anthropic_error(error)


def content_of(answer: TurnAnswer) -> list[Json]:
    """An answer as the content that its client sends back."""
    content: list[Json] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    return content + [_tool_use(call) for call in answer.tool_calls]


def _tool_use(call: ToolCall) -> dict[str, Json]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def _messages(message: Object, path: str) -> list[dict[str, Json]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise unexpected(f"{path}.role", role, "user or assistant; a tool's result is a block of the user's")
    if content is None:
        raise unexpected(f"{path}.content", content, "a string or a list of blocks")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = read_objects(content, f"{path}.content")
    return [_assistant(blocks)] if role == "assistant" else _of_user(str(role), blocks)


def _assistant(blocks: list[tuple[str, dict[str, Json]]]) -> dict[str, Json]:
    text, thinking, calls = "", None, list[Json]()
    for at, block in blocks:
        type = block.get("type")
        if type == "text":
            text += read_text(block.get("text"), f"{at}.text")
        elif type == "thinking":
            thinking = (thinking or "") + read_text(block.get("thinking"), f"{at}.thinking")
        elif type == "tool_use":
            calls.append(_call(block, at))
        else:
            raise unexpected(f"{at}.type", type, "text, thinking or tool_use, which are all that the policy can write")
    message: dict[str, Json] = {"role": "assistant", "content": text}
    if thinking is not None:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Object, path: str) -> dict[str, Json]:
    arguments = json.dumps(read_object(block.get("input"), f"{path}.input"), ensure_ascii=False)
    return ToolCall(
        read_name(block.get("id"), f"{path}.id"), read_name(block.get("name"), f"{path}.name"), arguments
    ).to_json()


def _of_user(role: str, blocks: list[tuple[str, dict[str, Json]]]) -> list[dict[str, Json]]:
    """Runs of text as one message each, and the results between them; no block at all is an empty message."""
    messages: list[dict[str, Json]] = []
    texts: list[str] = []
    for at, block in blocks:
        if block.get("type") == "tool_result":
            messages += _joined(role, texts)
            texts = []
            messages.append(_result(block, at))
        else:
            texts.append(read_parts([block], at, ("text",), ""))
    return messages + _joined(role, texts) or [{"role": role, "content": ""}]


def _joined(role: str, texts: list[str]) -> list[dict[str, Json]]:
    return [{"role": role, "content": "\n".join(texts)}] if texts else []


def _result(block: Object, path: str) -> dict[str, Json]:
    call_id = read_name(block.get("tool_use_id"), f"{path}.tool_use_id")
    content = read_parts(block.get("content"), f"{path}.content", ("text",), "\n")
    if read_flag(block.get("is_error"), f"{path}.is_error") and not content:
        content = "Error"  # a result without a word would read as a success
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _tool(tool: Object, path: str) -> dict[str, Json]:
    if tool.get("type", "custom") not in (None, "custom"):
        raise unexpected(f"{path}.type", tool["type"], '"custom", with a schema: the policy knows no built-in tools')
    function: dict[str, Json] = {"name": read_name(tool.get("name"), f"{path}.name")}
    if tool.get("description") is not None:
        function["description"] = read_text(tool["description"], f"{path}.description")
    function["parameters"] = read_object(tool.get("input_schema"), f"{path}.input_schema")
    return {"type": "function", "function": function}


def _calls_allowed(value: Json) -> bool:
    type = "auto" if value is None else read_object(value, "tool_choice").get("type")
    if type not in ("auto", "none"):
        raise invalid(f"tool_choice.type: found {json.dumps(type):.40}. {NO_FORCING}")
    return type == "auto"
