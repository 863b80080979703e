"""The items of OpenAI's responses: those of an input read into messages, those of an answer made.

A message and the calls after it are one turn of the assistant's, and so is the reasoning before them.
"""

from collections.abc import Callable, Mapping

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import ToolCall, TurnAnswer
from asyncrl.rollout.gateway.openai_logprobs import token_logprobs
from asyncrl.rollout.gateway.request_fields import (
    Object,
    read_name,
    read_objects,
    read_parts,
    read_text,
    unexpected,
)

Messages = list[dict[str, Json]]
COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


def read_input(value: Json) -> Messages:
    """The `input` of a request as messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages: Messages = []
    for at, item in read_objects(value, "input"):
        type = str(item.get("type") or "message")
        reader = _READERS.get(type)
        if reader is None:
            raise unexpected(
                f"{at}.type", item["type"], f"one of {', '.join(_READERS)}, the items that are kept nowhere"
            )
        reader(messages, item, at)
    return messages


def items_of(answer: TurnAnswer, *, with_logprobs: bool) -> list[Json]:
    """The `output` of a response. An answer without anything in it is an empty message, so that it can be sent back."""
    status = INCOMPLETE if answer.finish_reason == "length" else COMPLETED
    items: list[Json] = []
    if answer.reasoning:
        items.append(reasoning_item(answer.id, answer.reasoning))
    if answer.text or not (answer.tool_calls or answer.reasoning):
        part = text_part(answer.text, token_logprobs(answer) if with_logprobs else [])
        items.append(message_item(answer.id, [part], status))
    return items + [call_item(call, call.arguments, COMPLETED) for call in answer.tool_calls]


def reasoning_item(answer_id: str, text: str | None) -> dict[str, Json]:
    """An answer's reasoning; None: it is about to come."""
    content: list[Json] = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{answer_id}", "type": "reasoning", "summary": [], "content": content}


def message_item(answer_id: str, content: list[Json], status: str) -> dict[str, Json]:
    """An answer's text, in parts."""
    return {"id": f"msg_{answer_id}", "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str, logprobs: list[Json]) -> dict[str, Json]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(call: ToolCall, arguments: str, status: str) -> dict[str, Json]:
    """A call, with as much of its arguments as there is."""
    item: dict[str, Json] = {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id}
    return {**item, "name": call.name, "arguments": arguments, "status": status}


def _read_message(messages: Messages, item: Object, path: str) -> None:
    role = item.get("role")
    if role == "assistant":
        kinds, joint = ("output_text", "text"), ""
    elif role in ("user", "system", "developer"):
        kinds, joint = ("input_text", "text"), "\n"
    else:
        raise unexpected(f"{path}.role", role, "system, developer, user or assistant")
    if item.get("content") is None:
        raise unexpected(f"{path}.content", None, "a string or a list of parts")
    content = read_parts(item["content"], f"{path}.content", kinds, joint)
    if role == "assistant" and _is_begun(messages):
        messages[-1]["content"] = content
    else:
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _read_reasoning(messages: Messages, item: Object, path: str) -> None:
    parts = read_parts(item.get("content"), f"{path}.content", ("reasoning_text",), "")
    messages.append({"role": "assistant", "content": "", "reasoning_content": parts})


def _read_call(messages: Messages, item: Object, path: str) -> None:
    call = ToolCall(
        read_name(item.get("call_id"), f"{path}.call_id"),
        read_name(item.get("name"), f"{path}.name"),
        read_text(item.get("arguments"), f"{path}.arguments"),
    )
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)  # of this function's making
    calls.append(call.to_json())


def _read_result(messages: Messages, item: Object, path: str) -> None:
    call_id = read_name(item.get("call_id"), f"{path}.call_id")
    content = read_parts(item.get("output"), f"{path}.output", ("input_text", "text"), "\n")
    messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def _is_begun(messages: Messages) -> bool:
    """Whether the last message is reasoning alone, whose text is to come."""
    last = messages[-1] if messages else {}
    return "reasoning_content" in last and not last["content"] and "tool_calls" not in last


_READERS: Mapping[str, Callable[[Messages, Object, str], None]] = {
    "message": _read_message,
    "reasoning": _read_reasoning,
    "function_call": _read_call,
    "function_call_output": _read_result,
}
