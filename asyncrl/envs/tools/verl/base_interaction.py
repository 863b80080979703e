"""The base that verl's files of interactions inherit from, where verl is not installed."""

from typing import Any
from uuid import uuid4


class BaseInteraction:
    """verl's class of that name: what a subclass leaves out does the same as there."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a conversation; its id."""
        return instance_id or str(uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Whether the conversation ends, what the user says, a score of the model's turn, and further data."""
        raise NotImplementedError(f"{type(self).__name__} has no generate_response")

    async def finalize_interaction(self, *_: Any, **__: Any) -> None:
        """End a conversation."""
