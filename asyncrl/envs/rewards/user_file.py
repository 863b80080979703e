"""A user's own reward function, loaded from a Python file."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asyncrl.envs.rewards.failure import described
from asyncrl.errors import RewardError

FOR_ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
FOR_MANY = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""verl's keyword arguments for one answer, and as lists for many."""


@dataclass(frozen=True)
class UserReward:
    """A user's function; `for_many`: it takes lists and returns a list."""

    call: Callable[..., object]
    name: str
    for_many: bool


def load_reward(path: Path, function: str) -> UserReward:
    """Run the file and take its function, which may be async and is called with verl's keyword arguments.

    Raises:
        RewardError: no such file, it fails to load, or it has no such function with that signature.
    """
    if not path.is_file():
        raise RewardError(f"rollout.reward.file = {path} does not exist")
    spec = importlib.util.spec_from_file_location("asyncrl_user_reward", path)
    if spec is None or spec.loader is None:
        raise RewardError(f"rollout.reward.file = {path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles of the file look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # SystemExit too: whatever the file does, the answer is one clear message
        raise RewardError(f"rollout.reward.file = {path} cannot be loaded: {described(error, within=path)}") from None
    found: object = getattr(module, function, None)
    if not callable(found):
        raise RewardError(f"{path} has no function {function!r}. Write it, or set rollout.reward.function.")
    signature, problems = inspect.signature(found), []
    for for_many, names in ((False, FOR_ONE), (True, FOR_MANY)):
        try:
            signature.bind(**dict.fromkeys(names))
        except TypeError as error:
            problems.append(f"{', '.join(names)} ({error})")
        else:
            return UserReward(found, function, for_many)
    raise RewardError(f"{function} of {path} cannot be called with {problems[0]}, nor with {problems[1]}.")
