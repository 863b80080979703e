"""Environments written for verifiers, one for each `kind`, as its users write them."""

import os
import time
from typing import Any

import verifiers as vf

ROWS = [
    {"question": "2+2?", "answer": "4", "info": {"hint": "small"}},
    {"question": "3*5?", "answer": "15", "info": {"hint": "odd"}},
]


def text(message: Any) -> str:
    return str(message["content"] if isinstance(message, dict) else message.content)


def exact(completion: Any, answer: str) -> float:
    return 1.0 if text(completion[-1]) == answer else 0.0


async def short(completion: Any) -> float:
    return 1.0 if len(text(completion[-1])) < 3 else 0.0


def broken(completion: Any) -> float:
    raise RuntimeError("the judge is away")


def of_group(completions: Any) -> list[float]:
    return [0.0 for _ in completions]


def times(a: str, b: str) -> str:
    """Multiply two numbers.

    Args:
        a: one number
        b: the other
    """
    return str(int(a) * int(b))


class Hints(vf.MultiTurnEnv):
    """Says `wrong, <hint>` until the answer is right."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state["tries"] = 0
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["tries"] += 1
        said = text(messages[-1])
        if said == "crash":
            os._exit(3)
        if said == "hang":
            time.sleep(60)  # noqa: ASYNC251  # it holds its event loop, as a careless environment does
        if said == "raise":
            raise KeyError("no such room")
        if said == "fail":
            raise vf.Error("the room is on fire")
        if said == state["input"]["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"wrong, {state['info']['hint']} {state['tries']}"}]


class Forgets(Hints):
    """Cuts its history."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        del messages[0]
        return [{"role": "user", "content": "go on"}]


def load_environment(kind: str = "single", **kwargs: Any) -> Any:
    rubric = vf.Rubric(funcs=[exact, short], weights=[1.0, 0.5])
    dataset = make_dataset()
    if kind == "single":
        return vf.SingleTurnEnv(dataset=dataset, rubric=rubric, system_prompt="Answer with a number.", **kwargs)
    if kind == "broken":
        return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[exact, broken]), **kwargs)
    if kind == "group":
        return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[of_group]), **kwargs)
    if kind == "tools":
        return vf.ToolEnv(tools=[times], dataset=dataset, rubric=rubric, **kwargs)
    return {"hints": Hints, "forgets": Forgets}[kind](dataset=dataset, rubric=rubric, **kwargs)


def make_dataset() -> Any:
    try:
        from datasets import Dataset
    except ImportError:
        return ROWS
    return Dataset.from_list(ROWS)
