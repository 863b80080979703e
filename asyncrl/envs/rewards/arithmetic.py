"""Sums and the like: the answer is a number and nothing else."""

from asyncrl.data.answers import only_number, truth_number
from asyncrl.data.values import Json
from asyncrl.errors import RewardError


def compute_score(data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> float:
    """1 if the whole answer is a number equal to the truth, compared exactly (`7`, `7.0` and ` 7` are equal); else 0.

    Raises:
        RewardError: the truth is no number, so no answer could be right.
    """
    truth = truth_number(ground_truth)
    if truth is None:
        raise RewardError("the ground truth is not a number")
    return 1.0 if only_number(solution_str) == truth else 0.0
