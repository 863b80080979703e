"""What files of tools import from verl.tools.base_tool: the base class, with the methods that they do not write."""

from typing import Any
from uuid import uuid4

from asyncrl.envs.tools.verl.schemas import OpenAIFunctionToolSchema, ToolResponse


class BaseTool:
    """A tool of verl's form. A class of its own is made once a worker; an instance id stands for an episode."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        """Keep both; without a schema the class gives its own by get_openai_tool_schema.

        Raises:
            ValueError: neither has one.
        """
        self.config = config
        if tool_schema is not None:
            self.tool_schema = tool_schema
        own: OpenAIFunctionToolSchema | None = tool_schema or self.get_openai_tool_schema()
        if own is None:
            raise ValueError("it has no schema: write tool_schema in tool_config.yaml, or get_openai_tool_schema")
        self.tool_schema = own
        self.name = own.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """The schema that the model is shown."""
        return getattr(self, "tool_schema", None)  # type: ignore[return-value]  # None before __init__ is done

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Make the instance of an episode; its id is given, or made."""
        return str(uuid4()) if instance_id is None else instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any] | None]:
        """Answer a call: what the model is told, the call's own reward if any, metrics."""
        raise NotImplementedError(f"{type(self).__name__} has no method execute")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """What the instance is worth at the end of its episode."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Drop the instance."""
