"""Files as people have them who wrote tools for verl, old versions and new, and the configuration that names them."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

OLD = dedent('''
    """A tool in the form of 0.4: ids and texts alone are returned."""
    import logging
    from typing import Any, Optional, Tuple
    from uuid import uuid4

    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    LOG = []


    class Guess(BaseTool):
        def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
            super().__init__(config, tool_schema)
            self._instances = {}

        async def create(self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs) -> str:
            if ground_truth == "refuse":
                raise ValueError("refused")
            instance_id = instance_id or str(uuid4())
            self._instances[instance_id] = {"truth": ground_truth, "score": 0.0}
            LOG.append(("create", instance_id))
            return instance_id

        async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> Tuple[str, float, dict]:
            of = self._instances[instance_id]
            right = parameters["answer"] == of["truth"]
            reward = 0.0 if right else self.config["penalty"]
            of["score"] = float(right)
            return f"right: {right}", reward, {"right": right, "note": "no number"}

        async def calc_reward(self, instance_id: str, **kwargs) -> float:
            return self._instances[instance_id]["score"]

        async def release(self, instance_id: str, **kwargs) -> None:
            LOG.append(("release", instance_id))
            del self._instances[instance_id]
''')

NEW = dedent('''
    """A tool in the form of 0.5 and later: ids come with a response, calls get agent_data."""
    import os
    from typing import Any, Optional
    from uuid import uuid4

    from verl.tools.base_tool import BaseTool
    from verl.tools.registry import register_tool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
    from verl.utils.rollout_trace import rollout_trace_op


    @register_tool("notes")
    class Notes(BaseTool):
        def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
            return OpenAIFunctionToolSchema.model_validate({
                "type": "function",
                "function": {
                    "name": "notes",
                    "description": "Keeps notes.",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "entry": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 9}}},
                        },
                        "required": ["entry"],
                    },
                },
            })

        async def create(self, instance_id: Optional[str] = None, **kwargs) -> tuple[str, ToolResponse]:
            self.started_with = kwargs.get("create_kwargs", {}).get("notes", [])
            return "mine-" + instance_id, ToolResponse(text="not shown")

        @rollout_trace_op
        async def execute(
            self, instance_id: str, parameters: dict[str, Any], **kwargs
        ) -> tuple[ToolResponse, float, dict]:
            kept = kwargs["agent_data"].extra_fields.setdefault("notes", list(self.started_with))
            kept.append(parameters["entry"]["text"])
            if parameters["entry"]["text"] == "picture":
                return ToolResponse(text="see", image=["pixels"]), 0.0, {}
            return ToolResponse(text=f"{instance_id}: {kept}"), None, None
''')


def schema(name: str, **properties: Any) -> dict[str, Any]:
    """A function's schema, every parameter required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"Tool {name}.", "parameters": parameters}}


def entry(class_name: str, tool_schema: dict[str, Any] | None, **config: Any) -> dict[str, Any]:
    """An entry of tool_config.yaml for a class."""
    found: dict[str, Any] = {"class_name": class_name, "config": {"type": "native", **config}}
    return found if tool_schema is None else {**found, "tool_schema": tool_schema}


def write_config(folder: Path, *entries: dict[str, Any]) -> Path:
    """tool_config.yaml; JSON is YAML."""
    path = folder / "tool_config.yaml"
    path.write_text(json.dumps({"tools": list(entries)}, indent=2))
    return path
