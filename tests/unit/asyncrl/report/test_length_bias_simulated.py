"""The report against worlds whose lengths are known: lognormal answers, a limit at three medians, groups of eight.

Dropping whole groups and resampling until one finishes in time keeps answers that are 38 % shorter than those that
were started: the mean of a lognormal of sigma 1 is 1.65 medians, of its part below three medians 1.03.
"""

import re

import numpy as np
import numpy.typing as npt
import pytest

from asyncrl.report.answer_lengths import AnswerLengths
from asyncrl.report.length_bias import ALL, LengthBias, measure
from asyncrl.report.lines import Line
from asyncrl.trainer import group_metrics
from asyncrl.trainer.tally import Tally
from buffer.answers import Entry, LeftGroup

MEDIAN, LIMIT, GROUP, PER_STEP, STEPS = 200, 600, 8, 8, 120
KEPT_TOO_SHORT = 0.38

Lengths = npt.NDArray[np.int64]


def drawn(rng: np.random.Generator) -> Lengths:
    """The lengths of one group."""
    return np.ceil(MEDIAN * rng.lognormal(0.0, 1.0, GROUP)).astype(np.int64)


def entry(ordinal: int, lengths: Lengths, source: str) -> Entry:
    sampled = tuple(lengths.tolist())
    return Entry(ordinal, 1, "key", 100, "hash", 0, sampled, sampled, (1.0,) * GROUP, source, 1.0)


def gone(ordinal: int, lengths: Lengths, source: str) -> LeftGroup:
    sampled = tuple(lengths.tolist())
    return LeftGroup(ordinal, 1, "stale", "waiting", 1, sampled, sampled, source)


def line(step: int, trained: list[Entry], left: list[LeftGroup]) -> Line:
    """What the trainer writes of a step, by its own code."""
    tally = Tally()
    for group in trained:
        for name in ("response_length/mean", f"response_length/{group.data_source}/mean"):
            tally.mean(name, sum(group.sampled), len(group.sampled))
    return Line(
        step, 1, float(step), {**tally.values(), **group_metrics.consumed(trained), **group_metrics.left(left, trained)}
    )


def percent(verdict: str) -> float:
    found = re.search(r"(\d+)% shorter", verdict)
    assert found is not None, verdict
    return int(found[1]) / 100


def resampled(seed: int, limit: float = LIMIT) -> tuple[LengthBias, float]:
    """Drop what is not finished in time, and resample the prompt until it is. The report, and the true mean."""
    rng, every, lines = np.random.default_rng(seed), [], []
    for step in range(STEPS):
        trained: list[Entry] = []
        left: list[LeftGroup] = []
        while len(trained) < PER_STEP:
            every.append(lengths := drawn(rng))
            if lengths.max() <= limit:
                trained.append(entry(len(every), lengths, "math"))
            else:
                left.append(gone(len(every), lengths, "math"))
        lines.append(line(step, trained, left))
    bias = measure(lines)
    assert bias["math"].verdict() == bias[ALL].verdict()
    return bias["math"], float(np.concatenate(every).mean())


def test_resampling_until_a_group_is_in_time_keeps_answers_38_percent_shorter_and_the_report_says_so() -> None:
    bias, true_mean = resampled(seed=7)
    started, trained = bias.started(), bias.trained.per_answer()
    assert started is not None
    assert trained is not None
    assert (started.tokens, started.at_least) == (pytest.approx(true_mean), False)
    assert 1 - trained / started.tokens == pytest.approx(KEPT_TOO_SHORT, abs=0.02)
    assert percent(bias.verdict()) == pytest.approx(KEPT_TOO_SHORT, abs=0.02)
    assert "long answers were lost" in bias.verdict()


def test_waiting_for_every_group_selects_nothing() -> None:
    bias, _ = resampled(seed=7, limit=np.inf)
    assert bias.verdict() == "Every group that was started and has ended was trained on: nothing selected on length."


def test_stopping_doomed_groups_hides_their_lengths_and_the_report_calls_its_numbers_bounds() -> None:
    rng, ended, lines, every = np.random.default_rng(11), AnswerLengths(), [], []
    for step in range(STEPS):
        trained: list[Entry] = []
        while len(trained) < PER_STEP:
            every.append(lengths := drawn(rng))
            if lengths.max() <= LIMIT:
                trained.append(entry(len(every), lengths, "math"))
            else:
                ended.add(lengths[lengths <= LIMIT].tolist())
                ended.add([LIMIT] * int((lengths > LIMIT).sum()), cut=True)
        lines.append(line(step, trained, []))
    bias = measure(lines, {"math": ended}, fates_of(lines, ended))["math"]
    started = bias.started()
    assert started is not None
    assert started.at_least
    # Nobody saw an answer beyond three medians: the mean up to there is 1.3 medians, the truth 1.65.
    assert started.tokens == pytest.approx(1.297 * MEDIAN, rel=0.04)
    assert started.tokens < np.concatenate(every).mean()
    assert "Trained answers are at least " in bias.verdict()
    assert 0.15 < percent(bias.verdict()) < KEPT_TOO_SHORT


def test_groups_stopped_at_different_moments_give_back_the_true_mean() -> None:
    # A version lasts as long as it lasts: groups are stopped after one to fifteen medians.
    rng, ended, lines, every = np.random.default_rng(3), AnswerLengths(), [], []
    for step in range(STEPS):
        trained: list[Entry] = []
        while len(trained) < PER_STEP:
            every.append(lengths := drawn(rng))
            limit = round(MEDIAN * rng.uniform(1, 15))
            if lengths.max() <= limit:
                trained.append(entry(len(every), lengths, "math"))
            else:
                ended.add(lengths[lengths <= limit].tolist())
                ended.add([limit] * int((lengths > limit).sum()), cut=True)
        lines.append(line(step, trained, []))
    bias = measure(lines, {"math": ended}, fates_of(lines, ended))["math"]
    started, seen = bias.started(), bias.seen().per_answer()
    assert started is not None
    assert seen is not None
    true_mean = np.concatenate(every).mean()
    assert seen < 0.95 * true_mean, "cut answers taken for finished ones are too short"
    assert started.tokens == pytest.approx(true_mean, rel=0.03)


def fates_of(lines: list[Line], ended: AnswerLengths) -> dict[str, dict[str, dict[str, int]]]:
    """What the token ledger would say."""
    answers = sum(one.values["buffer/num_answers"] for one in lines)
    tokens = sum(one.values["buffer/num_answers"] * one.values["response_length/mean"] for one in lines)
    lost = {"trajectories": ended.finished.total() + ended.num_cut, "tokens": ended.finished_tokens + ended.cut_tokens}
    return {
        "trained": {"math": {"trajectories": round(answers), "tokens": round(tokens)}},
        "failed/abandoned": {"math": {name: round(number) for name, number in lost.items()}},
    }
