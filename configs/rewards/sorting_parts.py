"""The reward of sorted digits with its parts: what GDPO compares one by one."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None
) -> dict[str, float]:
    """1 for the exact answer. Parts: `exact`, `digits` (share of right places), `length` (as many as asked)."""
    right = sum(said == truth for said, truth in zip(solution_str, ground_truth, strict=False))
    exact = float(solution_str == ground_truth)
    return {
        "score": exact,
        "exact": exact,
        "digits": right / len(ground_truth),
        "length": float(len(solution_str) == len(ground_truth)),
    }
