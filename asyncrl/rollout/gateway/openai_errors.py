"""Errors in the form that OpenAI's protocols have for them."""

from collections.abc import Mapping

from asyncrl.data.values import Json
from asyncrl.rollout.gateway.conversation import ErrorType, ProtocolError

TYPES: Mapping[ErrorType, tuple[str, str | None]] = {
    "invalid_request": ("invalid_request_error", None),
    "authentication": ("invalid_request_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "not_found"),
    "conflict": ("invalid_request_error", "conflict"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit": ("rate_limit_error", "rate_limit_exceeded"),
    "server": ("server_error", "server_error"),
}
"""Our word -> the protocol's `type` and `code`."""


def openai_error(error: ProtocolError) -> dict[str, Json]:
    """The body of an error reply."""
    type, code = TYPES[error.type]
    return {"error": {"message": error.message, "type": type, "param": None, "code": code}}
