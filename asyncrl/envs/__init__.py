"""Environments by name, for `rollout.environment`. A new one is a file beside this one and a line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from asyncrl.envs.base import Closable, Environment, EnvironmentDeps, Resumable, Reward, StepResult
from asyncrl.envs.harbor.environment import HarborEnvironment
from asyncrl.envs.multi_turn_math import MultiTurnMath
from asyncrl.envs.single_turn import SingleTurn
from asyncrl.envs.text_game import TextGame
from asyncrl.envs.tool_agent import ToolAgent
from asyncrl.envs.tool_math import ToolMath
from asyncrl.envs.verifiers.environment import VerifiersEnvironment

__all__ = ["ENVIRONMENTS", "Closable", "Environment", "EnvironmentDeps", "Resumable", "Reward", "StepResult"]

ENVIRONMENTS: Mapping[str, Callable[[EnvironmentDeps], Environment]] = MappingProxyType(
    {
        "single_turn": SingleTurn,
        "multi_turn_math": MultiTurnMath,
        "tool_math": ToolMath,
        "tool_agent": ToolAgent,
        "text_game": TextGame,
        "harbor": HarborEnvironment,
        "verifiers": VerifiersEnvironment,
    }
)
