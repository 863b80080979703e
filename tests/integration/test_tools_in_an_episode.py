"""Tools of several kinds in one episode of tool_agent: what the model is shown and told, what is released."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import RolloutConfig, ToolsConfig
from asyncrl.config.tools import PythonToolConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.base import EnvironmentDeps
from asyncrl.envs.tool_agent import ToolAgent
from tests.support.event_loop import in_event_loop
from tests.support.tool_play import FixedRewards
from tests.support.verl_tools import OLD, entry, schema, write_config

NAMES = ["calc", "python", "twice", "guess"]
KWARGS: dict[str, Json] = {"guess": {"create_kwargs": {"ground_truth": "b"}}}
ROW = PromptRow(0, "test", ({"role": "user", "content": "go"},), "b", {"tools_kwargs": KWARGS})


def calls(*called: tuple[str, dict[str, Any]]) -> str:
    """A turn that makes them."""
    written = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in called)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in written)


@pytest.fixture
def tools(tmp_path: Path) -> ToolsConfig:
    """One of each kind that needs no server."""
    module = f"episode_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(OLD)
    (tmp_path / "own.py").write_text('def twice(n: int) -> int:\n    """Doubles."""\n    return 2 * n\n')
    guess = entry(f"{module}.Guess", schema("guess", answer={"type": "string"}), penalty=-0.25)
    return ToolsConfig(
        builtin=("calc", "python"),
        functions=(f"{tmp_path / 'own.py'}:twice",),
        config_path=write_config(tmp_path, guess),
        python=PythonToolConfig(keep_state=True),
        reward_weight=1.0,
    )


@in_event_loop
async def test_an_episode_calls_tools_of_every_kind_and_releases_them_once(tools: ToolsConfig) -> None:
    """The state of a kept session lasts from one turn to the next; a tool that fails is told and ends nothing."""
    deps = EnvironmentDeps(FixedRewards(1.0), RolloutConfig(max_turns=5, tools=tools))
    agent = ToolAgent(deps)
    await agent.reset(ROW, seed=0)
    assert [json.loads(json.dumps(shown))["function"]["name"] for shown in agent.tools] == NAMES
    first = await agent.step(
        calls(
            ("twice", {"n": 21}),
            ("calc", {"expr": "6*7"}),
            ("python", {"code": "x = 41\nx"}),
            ("guess", {"answer": "a"}),
            ("twice", {"n": "many"}),
        ),
        "stop",
    )
    told = [str(message["content"]) for message in first.messages]
    assert told[:4] == ["42", "42", "41\n", "right: False"]
    assert told[4].startswith("error: wrong arguments: n: ")
    second = await agent.step(calls(("python", {"code": "x + 1"}), ("guess", {"answer": "b"}), ("guess", {})), "stop")
    told = [str(message["content"]) for message in second.messages]
    assert told[:2] == ["42\n", "right: True"]
    assert told[2].startswith("error: KeyError")
    end = await agent.step("done", "stop")
    assert end.reward is not None
    # The score, a call that cost 0.25, one that cost nothing, and the tool's opinion of the episode.
    assert end.reward.value == pytest.approx(1.0 - 0.25 + 0.0 + 1.0)
    await agent.close()
    await agent.close()
    await deps.resources.close()
    module = next(name for name in sys.modules if name.startswith("episode_"))
    log = sys.modules.pop(module).LOG
    assert [what for what, _ in log] == ["create", "release"]
    assert log[0][1] == log[1][1]
    assert deps.counts["tool_calls"] == 8
    assert deps.counts["tool_calls_ok"] == 6


@in_event_loop
async def test_a_worker_that_stops_in_a_call_leaves_no_process(tools: ToolsConfig) -> None:
    deps = EnvironmentDeps(FixedRewards(1.0), RolloutConfig(max_turns=5, tools=tools))
    agent = ToolAgent(deps)
    await agent.reset(ROW, seed=0)
    await agent.step(calls(("python", {"code": "x = 1"}), ("guess", {"answer": "b"})), "stop")
    going = asyncio.create_task(agent.step(calls(("python", {"code": "while True: pass"})), "stop"))
    await asyncio.sleep(0)
    going.cancel()
    await asyncio.wait({going})
    assert going.cancelled()
    await agent.close()
    await deps.resources.close()
    module = next(name for name in sys.modules if name.startswith("episode_"))
    assert [what for what, _ in sys.modules.pop(module).LOG] == ["create", "release"]
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
