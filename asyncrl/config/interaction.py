"""Section rollout.interaction: programs that answer a model's turn as its user."""

from pathlib import Path

from pydantic import Field

from asyncrl.config.section import Section


class InteractionConfig(Section):
    """Where they are named, and how long an answer may take. A row says by extra_info.interaction_kwargs.name which one
    it talks with, in the environment tool_agent."""

    config_path: Path | None = None
    """An interaction_config.yaml as verl reads it: classes with start_interaction and generate_response."""

    timeout_s: float = Field(60.0, gt=0)
    """Seconds one answer may take. Later the episode's group is given back as failed."""
