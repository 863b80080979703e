"""A Harbor task's own tests as the reward: tests/test.sh is run in the workspace, and says what the work is worth.

Source: Harbor's documentation of verifiers: /logs/verifier/reward.json (a number, or numbers by name), or else
/logs/verifier/reward.txt (a number). Tests that leave neither have said nothing: that is no reward of 0.
"""

import json
import math

from asyncrl.data.harbor_tasks import HarborTask
from asyncrl.envs.harbor.workspace import TESTS, VERIFIER_LOGS, Ran, Workspace, resolved
from asyncrl.envs.rewards.result import Reward, reward_from
from asyncrl.errors import RewardError

REWARD_JSON, REWARD_TEXT = f"{VERIFIER_LOGS}/reward.json", f"{VERIFIER_LOGS}/reward.txt"
MAX_REWARD_BYTES = 1 << 20
_SHOWN = 300


async def verdict(task: HarborTask, workspace: Workspace, *, exit_code_is_reward: bool) -> Reward:
    """Run the tests on what the agent left.

    What lies in /tests and /logs/verifier is removed before: the agent could have put its own tests or reward there.

    Args:
        exit_code_is_reward: tests that leave no file are worth 1 if they exit with 0, and 0 if not.
    Returns:
        A reward without a value if the tests did not end in time, left no reward, or one that is no number.
    Raises:
        WorkspaceError: the workspace failed.
    """
    tests = task.directory / "tests"
    await workspace.put(None, VERIFIER_LOGS)
    await workspace.put(tests, TESTS)
    env = {
        **resolved(task.environment.env, f"{task.directory}: environment.env"),
        **resolved(task.verifier.env, f"{task.directory}: verifier.env"),
    }
    ran = await workspace.run(f"bash {TESTS}/test.sh", task.verifier.timeout_sec, env, task.verifier.user)
    if ran.exit_code is None:
        return Reward(None, f"the tests of {task.name} did not end in {task.verifier.timeout_sec:g} s")
    if (blob := await workspace.read(REWARD_JSON, MAX_REWARD_BYTES)) is not None:
        return _of_json(task, blob)
    if (blob := await workspace.read(REWARD_TEXT, MAX_REWARD_BYTES)) is not None:
        return _of_text(task, blob)
    if exit_code_is_reward:
        return Reward(1.0 if ran.exit_code == 0 else 0.0)
    return Reward(None, _nothing_said(task, ran))


def _of_json(task: HarborTask, blob: bytes) -> Reward:
    try:
        value = json.loads(blob)
        if isinstance(value, dict):
            numbers = {name: x for name, x in value.items() if isinstance(x, int | float) and not isinstance(x, bool)}
            if "reward" not in numbers and len(numbers) != 1:
                raise RewardError(f"it has no number 'reward' among {', '.join(map(repr, value)) or 'no keys'}")
            score = numbers.pop("reward") if "reward" in numbers else next(iter(numbers.values()))
            value = {"score": score, **numbers}
        return reward_from(value, "it")
    except (ValueError, RecursionError) as error:  # RewardError is one, and so is what json raises
        return Reward(None, f"the reward.json of {task.name} cannot be used: {error}")


def _of_text(task: HarborTask, blob: bytes) -> Reward:
    text = blob.decode(errors="replace").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return Reward(None, f"the reward.txt of {task.name} holds {text[:60]!r}, wanted a number")
    return Reward(value)


def _nothing_said(task: HarborTask, ran: Ran) -> str:
    said = ran.output.strip()[-_SHOWN:]
    return f"the tests of {task.name} left no reward.json and no reward.txt (exit code {ran.exit_code}): {said}"
