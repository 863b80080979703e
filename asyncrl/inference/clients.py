"""Which client speaks to the servers of each engine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from asyncrl.inference.client import ServerClient
from asyncrl.inference.vllm_client import VllmClient

CLIENTS: Mapping[str, type[ServerClient]] = MappingProxyType(
    {"local": ServerClient, "sglang": ServerClient, "vllm": VllmClient}
)
"""By the values of inference.engine; the local server has SGLang's routes."""


def make_client(engine: str, url: str, **settings: Any) -> ServerClient:  # Any: ServerClient's, as they are
    """The client of a server of this engine."""
    return CLIENTS[engine](url, **settings)
