"""What an evaluation says of its answers, against numbers worked out by hand and against the slow way."""

from dataclasses import replace
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from asyncrl.metrics.held_out import PRED, best_of, held_out_score, majority, measure
from buffer import Row, Span, Trajectory


def answer(reward, *, tokens=2, finish_reason="stop", num_turns=1, **parts):
    ids, mask = np.arange(1 + tokens, dtype=np.uint32), np.array([False] + [True] * tokens)
    row = Row(ids, mask, np.zeros(1 + tokens, dtype=np.float32), (Span(0, 0, tokens),), 1)
    return Trajectory(
        rows=(row,),
        reward=reward,
        reward_error=None if reward is not None else "timeout",
        reward_parts=parts,
        finish_reason=finish_reason,
        num_turns=num_turns,
    )


def prompt(*rewards, source="toy"):
    return source, [answer(reward) for reward in rewards]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rewards", [[0, 0, 1, 0, 1], [0.5, -1.0, 2.0, 2.0, 0.0], [1, 1, 1, 1, 1]])
def test_best_of_k_is_the_mean_over_all_draws_of_k_answers(rewards, k):
    slow = fmean(max(draw) for draw in combinations(rewards, k))
    assert best_of(rewards, k) == pytest.approx(slow, abs=1e-12)


def test_pass_at_k_is_the_unbiased_estimator():
    """1 - C(n - c, k) / C(n, k): with 4 answers, 1 passes: 1/4, 1 - 3/6, 1; with none: 0. The mean is of both."""
    values = measure([prompt(1.0, 0.0, 0.0, 0.0), prompt(0.0, 0.0, 0.0, 0.0)], group_size=4, pass_reward=1.0)
    assert values["val-core/toy/reward/pass@1"] == pytest.approx(0.125)
    assert values["val-core/toy/reward/pass@2"] == pytest.approx(0.25)
    assert values["val-core/toy/reward/pass@4"] == pytest.approx(0.5)
    assert values["val-core/toy/reward/mean@4"] == pytest.approx(0.125)


def test_an_answer_passes_from_pass_reward_on():
    prompts = [prompt(0.5, 0.49)]
    assert measure(prompts, group_size=2, pass_reward=0.5)["val-core/toy/reward/pass@1"] == 0.5
    assert measure(prompts, group_size=2, pass_reward=0.6)["val-core/toy/reward/pass@2"] == 0.0


def test_best_and_spread_are_by_prompt_and_the_largest_k_is_core():
    values = measure([prompt(0.0, 2.0, 4.0), prompt(1.0, 1.0, 1.0)], group_size=3, pass_reward=1.0)
    assert values["val-core/toy/reward/best@3/mean"] == 2.5
    assert values["val-aux/toy/reward/best@2/mean"] == pytest.approx(((2 + 4 + 4) / 3 + 1) / 2)
    assert values["val-aux/toy/reward/std@3"] == pytest.approx((8 / 3) ** 0.5 / 2)
    assert {"val-core/toy/reward/pass@1", "val-core/toy/reward/pass@2", "val-core/toy/reward/pass@3"} <= set(values)


def said(*answers):
    """(reward, what it says or None) of each answer of a prompt."""
    return [replace(answer(reward), extra_info={} if word is None else {PRED: word}) for reward, word in answers]


def test_the_majority_is_what_most_answers_say_and_the_first_of_equals():
    assert majority(said((0.0, "6"), (1.0, "7"), (1.0, "7"))) == 1.0
    assert majority(said((0.0, "6"), (1.0, "7"), (1.0, "7"), (0.0, "6"))) == 0.0
    assert majority(said((0.0, ""), (0.0, ""), (1.0, "7"))) == 1.0, "an answer that says nothing has no vote"
    assert majority(said((0.25, ""), (0.0, ""))) == 0.25
    assert majority(said((1.0, "7"), (0.0, None))) is None
    assert majority(said((1.0, "7"), (None, "7"))) is None


def test_the_majority_is_a_mean_over_prompts_of_which_everything_is_known():
    known = [said((1.0, "7"), (1.0, "7"), (0.0, "6")), said((0.0, "a"), (0.0, "a"), (1.0, "b"))]
    unknown = [said((1.0, "7"), (1.0, None), (1.0, "7")), said((1.0, "7"))]
    values = measure([("toy", answers) for answers in known + unknown], group_size=3, pass_reward=1.0)
    assert values["val-core/toy/reward/maj@3/mean"] == 0.5
    assert not any("maj@" in name for name in measure([("toy", said((1.0, "7")))], group_size=1, pass_reward=1.0))
    assert not any("maj@" in name for name in measure([prompt(1.0, 0.0)], group_size=2, pass_reward=1.0))


def test_one_answer_has_neither_a_best_nor_a_spread():
    values = measure([prompt(1.0)], group_size=1, pass_reward=1.0)
    assert values["val-core/toy/reward/mean@1"] == values["val-core/toy/reward/pass@1"] == 1.0
    assert not any("best@" in name or "std@" in name for name in values)


def test_pass_at_k_is_of_the_prompts_that_have_k_rewards():
    values = measure([prompt(1.0, None), prompt(0.0, 0.0)], group_size=2, pass_reward=1.0)
    assert values["val-core/toy/reward/pass@1"] == 0.5
    assert values["val-core/toy/reward/pass@2"] == 0.0
    assert values["val-aux/toy/without_reward"] == 1.0
    assert "val-core/toy/reward/pass@1" not in measure([prompt(None, None)], group_size=2, pass_reward=1.0)


def test_parts_lengths_and_turns_are_beside_it():
    long = answer(0.0, tokens=5, finish_reason="length", num_turns=3, format=1.0)
    values = measure([("toy", [answer(1.0, format=0.0), long]), ("toy", [answer(1.0)])], group_size=2, pass_reward=1.0)
    assert values["val-aux/toy/format/mean@2"] == 0.5
    assert values["val-aux/toy/response_length/mean"] == 3.0
    assert values["val-aux/toy/response_length/max"] == 5.0
    assert values["val-aux/toy/response_length/clip_ratio"] == pytest.approx(1 / 3)
    assert values["val-aux/toy/num_turns/mean"] == pytest.approx(5 / 3)


def test_the_score_is_the_mean_over_sources_of_the_mean_alone():
    prompts = [prompt(1.0, 0.0), prompt(1.0, 1.0, source="a/b")]
    assert held_out_score(measure(prompts, group_size=2, pass_reward=1.0)) == 0.75
    assert held_out_score(measure([prompt(None, None)], group_size=2, pass_reward=1.0)) is None
