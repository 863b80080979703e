"""What plays episodes is made with the tools loaded first: a prompt is as long as the tools that it shows."""

import asyncio
import json
from pathlib import Path

import pytest

from asyncrl.config import Config
from asyncrl.doctor.tools import check_tools
from asyncrl.errors import DataError
from asyncrl.inference.board import FixedBoard
from asyncrl.load_config import load
from asyncrl.run.rollout_parts import load_parts
from tests.support.chat_models import make_model_dir

TOOLS = ("rollout.environment=tool_agent", "rollout.tools.builtin=[calc]")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    data = tmp_path / "sums.jsonl"
    data.write_text(json.dumps({"prompt": "1+1=", "ground_truth": "2", "data_source": "arithmetic"}) + "\n")
    model = make_model_dir(tmp_path / "model", "chatml")
    (model / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    return (f"data.train_files=[{data}]", f"model.path={model}")


async def made(config: Config) -> int:
    """How many prompts there are; all that was made is closed again."""
    parts = await load_parts(config, FixedBoard(()), config.model.path)
    parts.rewards.close()
    await parts.rewards.close_connections()
    await parts.resources.close()
    await parts.fleet.close()
    return len(parts.train.rows)


def test_prompts_that_are_too_long_with_the_runs_tools_alone_are_refused_by_workers_and_doctor(
    files: tuple[str, ...],
) -> None:
    short = "data.max_prompt_tokens=30"
    config = load(None, [*files, *TOOLS, short]).config
    with pytest.raises(DataError, match=r"line 1: .* tokens with the tools that rollout\.tools shows .*raise"):
        asyncio.run(made(config))
    found = {finding.name: finding for finding in check_tools(config)}
    assert (found["tools"].ok, found["tools"].detail) == (True, "calc")
    assert "tokens with the tools" in found["prompts with tools"].detail
    assert not found["prompts with tools"].ok
    assert asyncio.run(made(load(None, [*files, short]).config)) == 1, "without tools it fits"


def test_prompts_that_fit_with_the_runs_tools_are_played(files: tuple[str, ...]) -> None:
    config = load(None, [*files, *TOOLS, "data.max_prompt_tokens=600"]).config
    assert asyncio.run(made(config)) == 1
    assert [finding.name for finding in check_tools(config)] == ["tools"]
