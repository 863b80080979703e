"""The reward of the scenes that are trained by ours and by a peer: the share of an answer that repeats the digit.

Imported in both environments: the standard library alone is needed.
"""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    """Characters that are the digit, by the length that a full answer has; by the answer's own where that is 0."""
    length = int(extra_info["length"]) or max(len(solution_str), 1)
    return solution_str.count(str(ground_truth)) / length
