"""The quickstart's task: `sort 5281` is answered by `1258`, exactly."""

from asyncrl.data.values import Json


def compute_score(data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> float:
    """1 if the answer up to its end token is the sorted digits and nothing else, not even a space; else 0."""
    return 1.0 if solution_str == str(ground_truth) else 0.0
