"""What would fail with every call is refused at the start: a template without tools, tools without a use."""

from pathlib import Path

import pytest

from asyncrl.config import RolloutConfig, ToolsConfig
from asyncrl.data.template import TemplateRefused
from asyncrl.envs.lookup import find_environment
from asyncrl.errors import ConfigError
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.run.tool_checks import check_tools
from tests.support.chat_models import FAMILIES, make_model_dir

CALC = ToolsConfig(builtin=("calc",))


def check(tmp_path: Path, family: str, environment: str, tools: ToolsConfig) -> None:
    rollout = RolloutConfig(environment=environment, tools=tools)
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path / family, family))
    check_tools(rollout, find_environment(environment), chat)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("environment", ["tool_agent", "tool_math"])
def test_a_template_that_refuses_tools_answers_is_refused_with_what_to_do(
    tmp_path: Path, family: str, environment: str
) -> None:
    tools = CALC if environment == "tool_agent" else ToolsConfig()
    if family in ("mistral", "gemma"):
        with pytest.raises(TemplateRefused, match=rf"(?s)must alternate.*{environment} shows.*chat_template\.jinja"):
            check(tmp_path, family, environment, tools)
    else:
        check(tmp_path, family, environment, tools)


@pytest.mark.parametrize("family", ["mistral", "gemma"])
def test_such_a_template_serves_where_no_tool_answers(tmp_path: Path, family: str) -> None:
    check(tmp_path, family, "single_turn", ToolsConfig())
    check(tmp_path, family, "tool_agent", ToolsConfig())  # it may have users alone


@pytest.mark.parametrize("environment", ["single_turn", "multi_turn_math", "tool_math", "text_game"])
def test_tools_that_the_environment_has_no_use_for_are_refused(tmp_path: Path, environment: str) -> None:
    with pytest.raises(ConfigError, match=rf"rollout\.tools names tools, but rollout\.environment = {environment}"):
        check(tmp_path, "chatml", environment, CALC)


def test_a_form_of_calls_that_cannot_be_told_is_refused(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path / "gemma", "gemma")
    (path / "chat_template.jinja").write_text(FAMILIES["chatml"][0] + "{# <arg_key> #}")
    rollout = RolloutConfig(environment="tool_math")
    with pytest.raises(ConfigError, match=r"rollout\.tools\.parser = auto"):
        check_tools(rollout, find_environment("tool_math"), ChatTemplate.from_model_dir(path))
