"""The built-in rewards: right answers are right however they are written, and nothing equals nothing."""

import threading

import numpy as np
import pytest

from asyncrl.data.boxes import last_box
from asyncrl.data.values import Json
from asyncrl.envs.rewards import REWARDS, check_sources, compute_score, reward_from
from asyncrl.envs.rewards.result import Reward
from asyncrl.errors import RewardError

PERCENTAGES = (r"\boxed{9\%}", r"\boxed{9 \%}", r"\boxed{9%}", "The answer is 9%.", r"so \(9\%\)", r"so $9\%$")
"""Ways to write one that is compared by its number, whatever the truth says."""


def score(source: str, answer: str, truth: Json) -> float | None:
    return compute_score(source, answer, truth).value


def test_sorted_digits_must_match_exactly() -> None:
    assert score("sort_digits", "1258", "1258") == 1.0
    for wrong in ("1285", "1258 ", "", "12<|user|>58", "01258"):
        assert score("sort_digits", wrong, "1258") == 0.0


def test_arithmetic_compares_numbers_and_takes_nothing_around_them() -> None:
    assert score("arithmetic", " 19", "19") == score("arithmetic", "19.0", 19) == 1.0
    assert score("arithmetic", "19 or 20", "19") == score("arithmetic", "", "19") == 0.0


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("#### -3", "-3", 1.0),
        ("#### 3", "-3", 0.0),
        ("#### +3", "3", 1.0),
        ("#### \u22123", "-3", 1.0),
        ("#### $1,234.00", "1234", 1.0),
        ("#### 1234", "1,234", 1.0),
        ("#### 1.234", "1234", 0.0),
        ("2+40=42\n#### 42\n" + "x" * 60 * 8, "42", 1.0),
        ("#### 5\n(checked 3 times)", "5", 1.0),
        ("the answer is 5", "5", 0.0),
        ("#### 42", 42.0, 1.0),
        ("#### 42", "so 6*7=42\n#### 42", 1.0),
        ("#### 42", ["41", "42"], 1.0),
        ("#### 43", ["41", "42"], 0.0),
    ],
)
def test_gsm8k_strict(answer: str, truth: Json, expected: float) -> None:
    """Signs (B120), separators and currency (B122), and an answer far from the end of the text (B119)."""
    assert score("gsm8k", answer, truth) == score("openai/gsm8k", answer, truth) == expected


def test_gsm8k_flexible_takes_the_last_number_but_prefers_the_marker() -> None:
    """Markup around a number is no part of it (B127), and the last one counts, be it the answer or not (B128)."""
    assert score("gsm8k_flexible", "Final Answer: **73**", "73") == 1.0
    assert score("gsm8k_flexible", "The answer is 5 apples (checked 3 times)", "5") == 0.0
    assert score("gsm8k_flexible", "#### 5\n(checked 3 times)", "5") == 1.0


@pytest.mark.parametrize("answer", ["no number here", ""])
def test_two_texts_without_a_number_are_not_equal(answer: str) -> None:
    """Such a row is unscored (B126); reading the data says so before a run."""
    with pytest.raises(RewardError, match="no final number"):
        compute_score("gsm8k", answer, "no number here")


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (r"so \boxed{72}", "72", 1.0),
        (r"so \boxed{840}. **Final Answer** \boxed{840}", "840", 1.0),
        (r"\boxed{7} no wait \boxed{9", "7", 0.0),
        (r"\boxed{7} no wait \boxed{9}", "7", 0.0),
        (r"\boxed{\frac{1}{2006!}}", r"\frac{1}{2004!}", 0.0),
        (r"\boxed{\frac{1}{2004!}}", r"\frac{1}{2004!}", 1.0),
        (r"\boxed{x = \frac{1}{2006!}}", r"\frac{1}{2004!}", 0.0),
        (r"\boxed{\frac{1}{2006!}}", r"x = \frac{1}{2004!}", 0.0),
        (r"\boxed{x = \frac{1}{2006!}}", r"x = \frac{1}{2004!}", 0.0),
        (r"\boxed{x = \frac{1}{2004!}}", r"\frac{1}{2004!}", 1.0),
        (r"\boxed{(1, \frac{1}{2006!})}", r"(1, \frac{1}{2004!})", 0.0),
        (r"\boxed{\{\frac{1}{2006!}, 1\}}", r"\{1, \frac{1}{2004!}\}", 0.0),
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", 1.0),
        (r"\boxed{x + \frac{1}{2006!}}", r"x + \frac{1}{2004!}", 0.0),
        (r"\boxed{0.000000001}", "0.0000000001", 0.0),
        (r"\boxed{0.333333}", r"\frac{1}{3}", 1.0),
        (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}", 1.0),
        (r"\boxed{[0, \infty)}", r"[0, \infty)", 1.0),
        (r"\boxed{\infty}", r"\infty", 1.0),
        (r"\boxed{\infty}", r"-\infty", 0.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0),
        (r"\boxed{2x}", "2*x", 1.0),
        (r"\boxed{2x}", "2*y", 0.0),
        (r"\boxed{2}", "2*x", 0.0),
        *((answer, truth, 1.0) for answer in (*PERCENTAGES, r"\boxed{9}") for truth in ("9", r"9\%", "9%")),
        *((answer, "0.09", 0.0) for answer in PERCENTAGES),
        (r"\boxed{4.5\%}", r"\frac{9}{2}", 1.0),
        (r"\boxed{7 \% 3}", "7", 0.0),
        (r"\boxed{}", "2", 0.0),
        ("I do not know", "2", 0.0),
        ("the final answer is $x + 1$", "1+x", 1.0),
    ],
)
def test_math(answer: str, truth: str, expected: float) -> None:
    """Boxes are not joined (B123), the last counts even if it is cut (B124), tiny numbers keep their size (B125)."""
    assert score("math", answer, truth) == expected


def test_math_gives_the_same_in_a_thread_as_in_the_main_thread() -> None:
    """No timer that works in the main thread only (B115)."""
    found: list[float | None] = []
    thread = threading.Thread(target=lambda: found.append(score("math", r"\boxed{72}", "72")))
    thread.start()
    thread.join()
    assert found == [1.0]


def test_the_last_box_is_read_with_its_braces() -> None:
    assert last_box(r"\boxed{1} \boxed{\frac{1}{2}} end") == r"\frac{1}{2}"
    assert last_box(r"\boxed{1") is None
    assert last_box(r"\boxed 7.") == "7."
    assert last_box("none") is None


def test_an_unknown_source_names_the_known_ones_the_nearest_and_the_key() -> None:
    with pytest.raises(RewardError, match=r"'gsm8'.*known: .*Did you mean 'gsm8k'.*rollout\.reward\.file"):
        check_sources(["math", "gsm8"])
    check_sources(REWARDS)


def test_a_row_without_a_truth_cannot_be_scored() -> None:
    for truth in (None, [], [None], ["1", None]):
        with pytest.raises(RewardError, match="no ground truth"):
            compute_score("gsm8k", "#### 1", truth)


@pytest.mark.parametrize("source", REWARDS)
def test_an_answer_that_is_not_there_is_an_error_and_never_the_text_none(source: str) -> None:
    """A field that was lost on the way costs one reward, and compares equal to nothing (B129)."""
    assert score("gsm8k", "#### 5", "5") == 1.0
    for truth in ("5", "None"):
        with pytest.raises(RewardError, match="no answer to score: it is null"):
            compute_score(source, None, truth)  # type: ignore[arg-type]  # what such a bug passes


class Tensor:
    """A scalar as tensor libraries have it."""

    ndim = 0

    def item(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (True, Reward(1.0)),
        (1, Reward(1.0)),
        (np.float32(0.5), Reward(0.5)),
        (np.bool_(True), Reward(1.0)),
        (np.array(0.5), Reward(0.5)),
        (Tensor(), Reward(0.25)),
        ({"score": 1}, Reward(1.0)),
        ({"score": 0.5, "format": True, "pred": "x", "bad": float("nan")}, Reward(0.5, None, {"format": 1.0}, "x")),
        ({"score": 0, "pred": 7}, Reward(0.0, None, {"pred": 7.0}, "7")),
        ({"score": 0, "pred": None}, Reward(0.0, None, {}, "")),
    ],
)
def test_numbers_of_every_kind_become_a_reward(returned: object, expected: Reward) -> None:
    assert reward_from(returned, "compute_score") == expected


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("1", "returned str, wanted one number"),
        (None, "returned NoneType"),
        ([1, 0, 1], "returned list of 3 items"),
        ([1.0], "returned list of 1 items"),
        (np.array([1.0, 2.0]), "returned ndarray"),
        ({"a": 1, "b": 2}, r"without 'score' \(keys: 'a', 'b'\)"),
        ({"score": "high"}, r"\['score'\] returned str"),
        (float("nan"), "returned nan"),
        (float("-inf"), "returned -inf"),
        ({"score": float("nan")}, "returned nan"),
    ],
)
def test_everything_else_is_refused_by_name_and_type(returned: object, words: str) -> None:
    with pytest.raises(RewardError, match=rf"compute_score.*{words}|compute_score{words}"):
        reward_from(returned, "compute_score")


@pytest.mark.parametrize(
    ("source", "same", "other"),
    [
        ("sort_digits", ["13", "13"], "31"),
        ("arithmetic", ["7", " 7.0"], "8"),
        ("gsm8k", ["so #### 1,000", "#### 1000.0"], "#### 10"),
        ("gsm8k_flexible", ["#### 7", "it is 7 apples"], "8"),
        ("math", [r"\boxed{x+1}", r"so \boxed{x+1}."], r"\boxed{x}"),
    ],
)
def test_built_in_rewards_know_which_answers_say_the_same(source: str, same: list[str], other: str) -> None:
    answers = [compute_score(source, text, "7").answer for text in (*same, other)]
    assert answers[0] == answers[1] != answers[2]
    assert all(answers)


def test_an_answer_that_says_nothing_is_empty() -> None:
    assert compute_score("gsm8k", "I do not know", "7").answer == ""
    assert compute_score("math", "7 without a box", "7").answer == ""


def test_a_reward_is_a_finite_value_or_an_error_never_both_or_neither() -> None:
    for value, error in ((None, None), (1.0, "x"), (float("nan"), None)):
        with pytest.raises(RewardError):
            Reward(value, error)
