"""The built-in reward of a data source, with verl's signature."""

import difflib
from collections.abc import Iterable
from dataclasses import replace

from asyncrl.data.values import Json, kind
from asyncrl.envs.rewards.result import Reward, reward_from, shortened
from asyncrl.envs.rewards.table import REWARDS
from asyncrl.errors import RewardError


def compute_score(data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> Reward:
    """Score an answer by the rule of its data source; of a list of truths, the best counts.

    Raises:
        RewardError: no rule for the source, the truth cannot be used, or there is no text to score. The absence of
            either is never written out and compared: None would equal None.
    """
    check_sources([data_source])
    rule = REWARDS[data_source]
    truths = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    if not truths or any(truth is None for truth in truths):
        raise RewardError(f"the row has no ground truth, and {data_source} needs one")
    if not isinstance(solution_str, str):
        raise RewardError(f"there is no answer to score: it is {kind(solution_str)}, wanted text")
    rewards = [
        reward_from(rule.compute_score(data_source, solution_str, truth, extra_info), data_source) for truth in truths
    ]
    best = max(rewards, key=lambda reward: reward.value or 0.0)
    return best if rule.answer is None else replace(best, answer=shortened(rule.answer(solution_str)))


def check_sources(data_sources: Iterable[str]) -> None:
    """Refuse data sources without a reward, before anything is generated.

    Raises:
        RewardError: naming the unknown ones, the known ones and the key to set.
    """
    for source in data_sources:
        if source not in REWARDS:
            nearest = difflib.get_close_matches(source, REWARDS, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise RewardError(
                f"no reward is known for data_source {source!r} (known: {', '.join(REWARDS)}).{hint} Change the "
                "column, set rollout.reward.file to a Python file with your compute_score, or list a server or "
                "judge that scores it in rollout.reward.servers or judges."
            )
