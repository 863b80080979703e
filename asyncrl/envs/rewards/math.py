"""Competition maths: symbolic equality by math-verify, and a second look at numbers that it rounds.

math-verify's own timeouts use signals, which fail outside the main thread and then read as a wrong answer; they are off
here, and the pool's process bounds the call. Limits: a decimal is compared to 6 places and to a thousandth of
its size; `2x` in plain text is 2*x; a percent sign after a number says nothing, so that 9% is 9, not 0.09.
"""

import logging
import re

from asyncrl.data.boxes import has_box, last_box
from asyncrl.data.values import Json
from asyncrl.envs.rewards.exact_constants import numbers_agree
from asyncrl.errors import RewardError

_PERCENT = re.compile(r"(?<=[\d}])(?:\s|\\[,; ])*\\?%(?!\s*(?:[\w(]|\\[A-Za-z]))")  # not where it divides: 7 % 3


def compute_score(data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> float:
    """1 if the answer equals the truth, else 0.

    The answer is what the last box holds; one that is not closed holds nothing, even if an earlier box was right.
    Without any box it is what math-verify finds: a final-answer phrase, or the last expression.
    Raises:
        RewardError: math-verify cannot read the truth, so no answer could be right.
    """
    from math_verify import parse, verify

    # It warns about the missing timeouts once per process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    truth = str(ground_truth)
    gold = parse(_as_math(truth), parsing_timeout=None)
    if not gold:
        raise RewardError("math-verify cannot read the ground truth")
    if has_box(solution_str):
        content = last_box(solution_str)
        if content is None or not content.strip():
            return 0.0
        solution_str = f"\\boxed{{{content}}}"
    # math-verify reads no box with such a sign, and drops or counts the sign elsewhere.
    answer = parse(_PERCENT.sub("", solution_str), parsing_timeout=None)
    if not answer or not verify(gold, answer, timeout_seconds=None, raise_on_error=True):
        return 0.0
    return 1.0 if numbers_agree(gold[0], answer[0]) else 0.0


def prepare() -> None:
    """Import math-verify and build its tables: seconds on a busy machine."""
    compute_score("math", "1", "1")


def _as_math(truth: str) -> str:
    truth = _PERCENT.sub("", truth)
    return truth if "$" in truth or has_box(truth) else f"${truth}$"
