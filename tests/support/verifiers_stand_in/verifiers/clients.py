"""The seam to a model, as verifiers.clients has it."""

from abc import ABC, abstractmethod
from typing import Any


class Client(ABC):
    """What asks a model; subclasses say how."""

    def __init__(self, client_or_config: Any) -> None:
        self._client = client_or_config

    @abstractmethod
    async def to_native_tool(self, tool: Any) -> Any: ...

    @abstractmethod
    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]: ...

    @abstractmethod
    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Any: ...

    @abstractmethod
    async def raise_from_native_response(self, response: Any) -> None: ...

    @abstractmethod
    async def from_native_response(self, response: Any) -> Any: ...

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any) -> Any:
        native, extra = await self.to_native_prompt(prompt)
        shown = [await self.to_native_tool(tool) for tool in tools or ()]
        response = await self.get_native_response(native, model, sampling_args, shown, **extra, **kwargs)
        await self.raise_from_native_response(response)
        return await self.from_native_response(response)
