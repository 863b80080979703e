"""Grade-school maths: the final number of a worked solution, compared exactly.

strict (data source gsm8k): the number after the last `####`. flexible (gsm8k_flexible): that, or else the last number
of the text, which may be one that is not the answer. The whole text is searched, however much follows the marker.
"""

from asyncrl.data.answers import Mode, final_number, truth_number
from asyncrl.data.values import Json
from asyncrl.errors import RewardError


def compute_score(
    data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None, *, mode: Mode = "strict"
) -> float:
    """1 if the solution's final number equals the truth's; else 0. See data.answers for what counts as a number.

    Raises:
        RewardError: the truth has no number: two texts without one must not count as equal.
    """
    truth = truth_number(ground_truth)
    if truth is None:
        truth = truth_number(ground_truth, mode)
    if truth is None:
        raise RewardError("the ground truth has no final number")
    return 1.0 if final_number(solution_str, mode) == truth else 0.0


def compute_flexible_score(data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> float:
    """compute_score in flexible mode."""
    return compute_score(data_source, solution_str, ground_truth, extra_info, mode="flexible")
