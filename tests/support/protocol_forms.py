"""Conversations in the form of each of the gateway's protocols, and answers as their clients read and return them.

The inverse of the translators, written by the protocols' own documentation: a request's body from messages in the
neutral form, what a client sends back of an answer, and the answer that a client makes of a stream.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.rollout.gateway.anthropic_messages import AnthropicMessages
from asyncrl.rollout.gateway.conversation import Translator
from asyncrl.rollout.gateway.openai_chat import OpenAIChat
from asyncrl.rollout.gateway.openai_responses import OpenAIResponses

Body = dict[str, Any]  # Any: JSON of a protocol
MODEL = "policy"


@dataclass(frozen=True)
class Form:
    """One protocol, from its client's side.

    Attributes:
        body: messages and tools in the neutral form -> a request's body.
        sent_back: an answer's body -> what the client puts behind the conversation for it.
        joined: a stream's events -> the answer's body, as the client's helpers make it.
        put: a body, more of the conversation in the protocol's form -> the body that goes on with it.
    """

    translator: Translator
    body: Callable[[Sequence[Body], Sequence[Body]], Body]
    sent_back: Callable[[Body], list[Body]]
    joined: Callable[[list[Body]], Body]
    conversation: str

    def extended(self, body: Body, answer: Body, more: Sequence[Body]) -> Body:
        """The next request: the conversation so far, the answer as it came, further messages in the neutral form."""
        conversation = [*body[self.conversation], *self.sent_back(answer)]
        return {**body, self.conversation: [*conversation, *self.body(more, ())[self.conversation]]}


def events_of(data: bytes) -> list[Body]:
    """The JSON of a stream's events, each with its name checked; the end mark of chat completions is left out."""
    events = []
    for block in data.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if fields["data"] != "[DONE]":
            events.append(json.loads(fields["data"]))
            assert fields.get("event", events[-1].get("type")) == events[-1].get("type")
    return events


def chat_body(messages: Sequence[Body], tools: Sequence[Body]) -> Body:
    body: Body = {"model": MODEL, "messages": [dict(message) for message in messages]}
    return body | ({"tools": list(tools)} if tools else {})


def chat_joined(events: list[Body]) -> Body:
    message: Body = {"role": "assistant", "content": None, "refusal": None}
    finish, logprobs, calls = None, None, dict[int, Body]()
    for chunk in events:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for piece in delta.get("tool_calls", ()):
                call = calls.setdefault(piece["index"], {"function": {"arguments": ""}})
                call["function"]["arguments"] += piece["function"]["arguments"]
                if "id" in piece:
                    call |= {"id": piece["id"], "type": piece["type"]}
                    call["function"] = {"name": piece["function"]["name"], **call["function"]}
            finish, logprobs = choice["finish_reason"] or finish, choice["logprobs"] or logprobs
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    elif message["content"] is None:
        message["content"] = ""
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    last = events[-1]
    head = {name: last[name] for name in ("id", "created", "model", "system_fingerprint")}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": last["usage"]}


def messages_body(messages: Sequence[Body], tools: Sequence[Body]) -> Body:
    system = [message["content"] for message in messages if message["role"] == "system"]
    rest = [_blocks(message) for message in messages if message["role"] != "system"]
    body: Body = {"model": MODEL, "max_tokens": 64, "messages": rest}
    if system:
        body["system"] = [{"type": "text", "text": text} for text in system]
    if tools:
        flat = (tool["function"] for tool in tools)
        body["tools"] = [
            {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]} for one in flat
        ]
    return body


def _blocks(message: Body) -> Body:
    text = [{"type": "text", "text": message["content"]}]
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}
        return {"role": "user", "content": [result]}
    if message["role"] == "user":
        return {"role": "user", "content": text}
    blocks: list[Body] = []
    if "reasoning_content" in message:
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": "s"})
    blocks += text if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return {"role": "assistant", "content": blocks}


def messages_joined(events: list[Body]) -> Body:
    message: Body = {}
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[
                delta["type"]
            ]
            block[name] = block.get(name, "") + delta[name]
        elif event["type"] == "content_block_stop":
            block = message["content"][event["index"]]
            if "partial_json" in block:
                block["input"] = json.loads(block.pop("partial_json"))
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] = event["usage"]
    assert events[-1]["type"] == "message_stop"
    return message


def responses_body(messages: Sequence[Body], tools: Sequence[Body]) -> Body:
    items = [item for message in messages for item in _items(message)]
    body: Body = {"model": MODEL, "input": items, "include": ["message.output_text.logprobs"]}
    return body | ({"tools": [{"type": "function", **tool["function"]} for tool in tools]} if tools else {})


def _items(message: Body) -> Iterable[Body]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    if "reasoning_content" in message:
        content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
        yield {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    if message["role"] != "assistant":
        yield {"role": message["role"], "content": [{"type": "input_text", "text": message["content"]}]}
    elif message["content"] or not message.keys() & {"tool_calls", "reasoning_content"}:
        content = [{"type": "output_text", "text": message["content"], "annotations": []}]
        yield {"type": "message", "role": "assistant", "content": content}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def responses_joined(events: list[Body]) -> Body:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[Body] = []
    for event in events:
        if event["type"] == "response.output_item.done":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif event["type"].endswith(".delta"):
            assert event["output_index"] == len(items)
    response = events[-1]["response"]
    for item in response["output"]:
        for part in item.get("content", ()) if item["type"] == "message" else ():
            # Logprobs come with the whole response only.
            items[response["output"].index(item)]["content"][0]["logprobs"] = part["logprobs"]
    assert items == response["output"]
    return dict(response)


FORMS = {
    "openai_chat": Form(OpenAIChat(), chat_body, lambda body: [body["choices"][0]["message"]], chat_joined, "messages"),
    "openai_responses": Form(OpenAIResponses(), responses_body, lambda body: body["output"], responses_joined, "input"),
    "anthropic_messages": Form(
        AnthropicMessages(),
        messages_body,
        lambda body: [{"role": body["role"], "content": body["content"]}],
        messages_joined,
        "messages",
    ),
}
