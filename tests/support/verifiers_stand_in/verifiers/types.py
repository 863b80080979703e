"""Messages and answers, as verifiers.types has them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Of any role."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | None = None
    tool_calls: list["ToolCall"] | None = None

    @classmethod
    def of(cls, message: Any) -> "Message":
        return message if isinstance(message, Message) else cls.model_validate(dict(message))


class ToolCall(BaseModel):
    """A call; its arguments are JSON."""

    id: str
    name: str
    arguments: str


class UserMessage(Message):
    """Of the user."""

    role: str = "user"


class AssistantMessage(Message):
    """Of the model."""

    role: str = "assistant"


class ToolMessage(Message):
    """Of a tool."""

    role: str = "tool"
    tool_call_id: str


class ResponseMessage(AssistantMessage):
    """The model's turn."""

    finish_reason: str | None
    is_truncated: bool | None


class Response(BaseModel):
    """The answer of an endpoint."""

    id: str
    created: int
    model: str
    message: ResponseMessage


class Tool(BaseModel):
    """A tool's description."""

    name: str
    description: str
    parameters: dict[str, object]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Tool":
        names: Mapping[str, object] = inspect.signature(function).parameters
        properties: dict[str, object] = {name: {"type": "string"} for name in names}
        return cls(
            name=function.__name__,
            description=inspect.getdoc(function) or "",
            parameters={"type": "object", "properties": properties, "required": list(names)},
        )
