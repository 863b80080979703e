"""What the bridge uses of the library verifiers, where that is not installed: the same names, a fraction of the code.

Held to the library itself by tests/integration/test_verifiers.py, which runs with either.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from verifiers.clients import Client
from verifiers.types import AssistantMessage, Message, Tool, ToolMessage, UserMessage

__version__ = "0.0.0+stand-in"


class Error(Exception):
    """What the library raises of itself."""


class Rubric:
    """Reward functions with weights. A function that raises counts as 0, as in the library."""

    def __init__(self, funcs: list[Callable[..., Any]] | None = None, weights: list[float] | None = None) -> None:
        self.funcs = list(funcs or ())
        self.weights = list(weights or [1.0] * len(self.funcs))

    @property
    def has_group_rewards(self) -> bool:
        return any("completions" in inspect.signature(function).parameters for function in self.funcs)

    async def score_rollout(self, state: dict[str, Any]) -> None:
        given = {**state["input"], **state, "state": state}
        values = []
        for function in self.funcs:
            wanted = {name: given[name] for name in inspect.signature(function).parameters if name in given}
            try:
                value = function(**wanted)
                values.append(float(await value if inspect.isawaitable(value) else value))
            except Exception:
                values.append(0.0)
        state["reward"] = sum(value * weight for value, weight in zip(values, self.weights, strict=True))
        state["metrics"] = {f.__name__: value for f, value in zip(self.funcs, values, strict=True)}

    async def cleanup(self, state: dict[str, Any]) -> None:
        """Nothing."""


class MultiTurnEnv:
    """A prompt, and env_response after each of the model's turns."""

    def __init__(self, dataset: list[dict[str, Any]], rubric: Rubric, max_turns: int = -1, **kwargs: Any) -> None:
        self.rubric, self.max_turns, self.tool_defs = rubric, max_turns, kwargs.get("tool_defs")
        system = [{"role": "system", "content": kwargs["system_prompt"]}] if kwargs.get("system_prompt") else []
        self._rows = [
            {"prompt": [*system, {"role": "user", "content": row["question"]}], "example_id": number, **row}
            for number, row in enumerate(dataset)
        ]

    def get_dataset(self, n: int = -1) -> list[dict[str, Any]]:
        return self._rows if n < 0 else self._rows[:n]

    get_eval_dataset = get_dataset

    async def setup_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    async def env_response(self, messages: list[Message], state: dict[str, Any], **kwargs: Any) -> list[Message]:
        raise NotImplementedError

    async def rollout(self, input: dict[str, Any], client: Client, model: str, sampling_args: dict[str, Any]) -> Any:
        prompt: list[Any] = [Message.of(message) for message in input["prompt"]]
        state: dict[str, Any] = {"input": input, "trajectory": [], "error": None, "final_env_response": None}
        state["info"] = input.get("info", {})
        messages = list(prompt)
        try:
            state = await self.setup_state(state)
            while self.max_turns <= 0 or len(state["trajectory"]) < self.max_turns:
                if state["trajectory"]:
                    told = await self.env_response(messages, state)  # which may change the list that it is given
                    messages = [*messages, *map(Message.of, told)]
                if state["final_env_response"] is not None or state.get("is_over"):
                    break
                response = await client.get_response(messages, model, sampling_args, tools=self.tool_defs, state=state)
                said = response.message
                messages = [*messages, AssistantMessage(content=said.content, tool_calls=said.tool_calls)]
                state["trajectory"].append({"response": response})
        except Error as error:
            state["error"] = error
        state["completion"] = messages[len(prompt) :]
        return state


class SingleTurnEnv(MultiTurnEnv):
    """One answer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=1, **kwargs)


class ToolEnv(MultiTurnEnv):
    """Functions that the model may call; a turn without a call ends it."""

    def __init__(self, tools: list[Callable[..., Any]], **kwargs: Any) -> None:
        super().__init__(tool_defs=[Tool.of(tool) for tool in tools], **kwargs)
        self._tools = {tool.__name__: tool for tool in tools}

    async def env_response(self, messages: list[Message], state: dict[str, Any], **kwargs: Any) -> list[Message]:
        import json

        calls = messages[-1].tool_calls or []
        if not calls:
            state["is_over"] = True
        return [
            ToolMessage(tool_call_id=call.id, content=str(self._tools[call.name](**json.loads(call.arguments))))
            for call in calls
        ]


def load_environment(env_id: str, **args: Any) -> MultiTurnEnv:
    module = importlib.import_module(env_id.replace("-", "_"))
    env: MultiTurnEnv = module.load_environment(**args)
    return env


__all__ = ["Error", "MultiTurnEnv", "Rubric", "SingleTurnEnv", "ToolEnv", "UserMessage", "load_environment"]
