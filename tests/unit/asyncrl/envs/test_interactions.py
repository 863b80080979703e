"""Users that are programs: verl's files load unchanged, reply, and are ended once."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import RolloutConfig
from asyncrl.config.interaction import InteractionConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.base import EnvironmentDeps, StepResult
from asyncrl.envs.interactions import Interactions, load_interactions
from asyncrl.envs.tool_agent import ToolAgent
from asyncrl.errors import ConfigError
from tests.support.event_loop import in_event_loop
from tests.support.tool_play import FixedRewards

FILE = """
from typing import Any, Optional
from uuid import uuid4

from verl.interactions.base import BaseInteraction

ENDED = []


class Teacher(BaseInteraction):
    def __init__(self, config: dict):
        super().__init__(config)
        self._truths = {}

    async def start_interaction(self, instance_id: Optional[str] = None, ground_truth: str = "", **kwargs) -> str:
        instance_id = instance_id or str(uuid4())
        self._truths[instance_id] = ground_truth
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs) -> tuple[bool, str, float, dict[str, Any]]:
        assert kwargs["name"] == self.name
        content = next(item["content"] for item in reversed(messages) if item["role"] == "assistant")
        if content == self._truths[instance_id]:
            return True, "Right!", 1.0, {}
        return False, f"{self.config['wrong']} after {len(messages)} messages", 0.0, {}

    async def finalize_interaction(self, instance_id: str, **kwargs) -> None:
        del self._truths[instance_id]
        ENDED.append(instance_id)
"""
YAML = """
interaction:
  - name: teacher
    class_name: own_teacher.Teacher
    config: {wrong: Try again}
"""
ROW = PromptRow(
    0,
    "test",
    ({"role": "user", "content": "4*5?"},),
    None,
    {"interaction_kwargs": {"name": "teacher", "query": "4*5?", "ground_truth": "20"}},
)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[InteractionConfig]:
    """A folder with both files. What was imported from it is forgotten at the end."""
    (tmp_path / "own_teacher.py").write_text(FILE)
    (tmp_path / "interaction_config.yaml").write_text(YAML)
    path = list(sys.path)
    yield InteractionConfig(config_path=tmp_path / "interaction_config.yaml", timeout_s=5.0)
    sys.path[:] = path
    sys.modules.pop("own_teacher", None)


def deps_of(config: InteractionConfig, rewards: FixedRewards | None = None) -> EnvironmentDeps:
    return EnvironmentDeps(rewards or FixedRewards(), RolloutConfig(max_turns=3, interaction=config))


@in_event_loop
async def test_a_file_of_verl_replies_as_the_user_until_it_is_satisfied(config: InteractionConfig) -> None:
    rewards, stages = FixedRewards(), list[str]()
    deps = deps_of(config, rewards)
    environment = ToolAgent(deps)
    environment.watch(stages.append)
    assert await environment.reset(ROW, seed=1) == ROW.messages
    assert environment.snapshot() is not None
    first = await environment.step("19", "stop")
    assert first == StepResult(messages=({"role": "user", "content": "Try again after 2 messages"},))
    assert environment.snapshot() is None, "no other worker could go on with the conversation"
    last = await environment.step("20", "stop")
    assert last.reward is not None
    assert (last.done, last.reward.value) == (True, 1.0)
    assert rewards.rows[0].extra_info["turn_scores"] == [0.0, 1.0]
    assert stages == ["interacting", "interacting"]
    await environment.close()
    await environment.close()
    await deps.resources.close()
    assert len(sys.modules["own_teacher"].ENDED) == 1


@in_event_loop
async def test_the_last_turn_and_a_cut_one_are_scored_without_the_user(config: InteractionConfig) -> None:
    deps = deps_of(config)
    environment = ToolAgent(deps)
    await environment.reset(ROW, seed=1)
    assert (await environment.step("19", "length")).done
    await environment.close()
    await deps.resources.close()
    assert sys.modules["own_teacher"].ENDED == [], "no conversation was begun"


@pytest.mark.parametrize(
    ("kwargs", "told"), [({"name": "nobody"}, "'nobody'.*there is teacher"), ({}, "None"), ("teacher", "None")]
)
@in_event_loop
async def test_a_row_that_talks_with_nobody_is_refused(config: InteractionConfig, kwargs: Json, told: str) -> None:
    users = await load_interactions(config, Counter())
    with pytest.raises(ValueError, match=told):
        users.talk(PromptRow(3, "test", (), None, {"interaction_kwargs": kwargs}))
    assert users.talk(PromptRow(3, "test", (), None, {})) is None
    none = await load_interactions(InteractionConfig(), Counter())
    with pytest.raises(ValueError, match=r"row 0 talks with 'teacher'.*config_path is not set"):
        none.talk(ROW)


@in_event_loop
async def test_an_episode_with_neither_tools_nor_users_is_refused() -> None:
    environment = ToolAgent(deps_of(InteractionConfig()))
    with pytest.raises(ConfigError, match="needs tools or users"):
        await environment.reset(PromptRow(0, "test", ROW.messages, None, {}), seed=1)


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("interaction:\n- name: a\n  class_name: own_teacher.Nobody\n", "has no 'Nobody'"),
        ("interaction:\n- name: a\n  class_name: own_teacher.ENDED\n", "is no class with"),
        ("interaction:\n- name: a\n  class: b.C\n", "line 3.*class"),
        ("interactions: []\n", "interactions: is not known here"),
        (YAML + YAML.removeprefix("\ninteraction:"), "'teacher', which is empty or taken"),
    ],
)
@in_event_loop
async def test_a_file_that_cannot_be_used_is_refused_with_its_place(
    config: InteractionConfig, yaml: str, told: str
) -> None:
    assert config.config_path is not None
    config.config_path.write_text(yaml)
    with pytest.raises(ConfigError, match=rf"(?s){told}"):
        await load_interactions(config, Counter())


class Odd:
    """A user that answers in a form of its own, or not at all."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> str:
        return instance_id

    async def generate_response(self, instance_id: str, messages: list[Mapping[str, Json]], **kwargs: Any) -> Any:
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, "not over after"),
        ("text", "wanted .ends, text, score, data"),
        ((0, "text", 1.0), "wanted whether it ends"),
        ((False, "text", float("nan"), {}), "wanted a finite number"),
    ],
)
@in_event_loop
async def test_a_user_that_does_not_answer_as_it_must_fails_and_is_no_reward(answer: Any, error: str) -> None:
    users = Interactions({"teacher": Odd(answer)}, 0.02, Counter())
    talk = users.talk(ROW)
    assert talk is not None
    with pytest.raises((TimeoutError, TypeError), match=error):
        await talk.reply(ROW.messages)
    await talk.close()
