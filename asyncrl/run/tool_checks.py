"""Refuse before anything is generated what would fail with every tool that a model calls."""

from collections.abc import Callable

from asyncrl.config import RolloutConfig
from asyncrl.data.template import TemplateRefused
from asyncrl.data.values import Json
from asyncrl.envs import Environment, EnvironmentDeps
from asyncrl.envs.tools.parsers import find_parser
from asyncrl.errors import ConfigError
from asyncrl.rollout.chat import ChatTemplate

_ANSWER: dict[str, Json] = {"role": "tool", "name": "calc", "tool_call_id": "c00010000", "content": "4"}


def check_tools(
    rollout: RolloutConfig, make_environment: Callable[[EnvironmentDeps], Environment], chat: ChatTemplate
) -> None:
    """Check that the environment takes the tools that are named, and that the model's template knows their answers.

    Raises:
        ConfigError: the environment has no use for rollout.tools, or the form of calls cannot be told.
        TemplateRefused: the template refuses tools' answers.
    """
    tools = rollout.tools
    are_named = bool(tools.builtin or tools.functions or tools.config_path or tools.mcp_servers)
    takes = getattr(make_environment, "takes_tools", False)
    if are_named and not takes and ":" not in rollout.environment:
        raise ConfigError(
            f"rollout.tools names tools, but rollout.environment = {rollout.environment} has no use for them. Set it "
            "to tool_agent, or leave the tools out."
        )
    if not getattr(make_environment, "answers_with_tools", False) or (takes and not are_named):
        return
    find_parser(tools.parser, chat.source)
    try:
        chat.continuation([_ANSWER])
    except TemplateRefused as error:
        raise TemplateRefused(
            f"{error}. rollout.environment = {rollout.environment} shows tools' answers to the model, as messages of "
            f"the role tool after an answer. Put a template that knows them into {chat.path / 'chat_template.jinja'}."
        ) from error
