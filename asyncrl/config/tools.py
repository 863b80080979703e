"""Section rollout.tools: the tools that a model may call, and the limits of calling them."""

from typing import Literal

from pydantic import Field

from asyncrl.config.section import Section


class ToolsConfig(Section):
    """How calls are read from a model's turns, and what they may cost."""

    parser: Literal["auto", "hermes", "qwen", "llama3_json", "mistral", "pythonic"] = "auto"
    """The form in which the model writes calls. `auto`: what its chat template shows, refused where that is unclear."""

    max_calls_per_turn: int = Field(16, ge=1)
    """Calls of one turn that are run; the model is told that the others were not."""

    max_parallel: int = Field(8, ge=1)
    """Calls of one turn that run at the same time."""

    timeout_s: float = Field(30.0, gt=0)
    """Seconds one call may take. Later it is cancelled, and the model is told so."""

    max_result_chars: int = Field(4096, ge=64)
    """Longest result of a call that the model is shown, in characters."""

    truncate_result: Literal["left", "middle", "right"] = "middle"
    """What is cut out of a longer result: its beginning, its middle or its end. The model is told how much."""
