"""The length-bias report says whether long answers were lost, counting those that were dropped."""

import random

from asyncrl.report.length_bias import ALL, measure
from asyncrl.report.lines import Line

GROUP = 8


def trained(step: int, groups: int, length: float, **more: float) -> Line:
    values = {"training/off_policy/lag/0": float(groups), "response_length/mean": length}
    return Line(step, 1, float(step), values | {name.replace("__", "/"): value for name, value in more.items()})


def test_a_run_that_dropped_nothing_has_no_bias() -> None:
    bias = measure([trained(1, 4, 10.0), trained(2, 4, 20.0)], GROUP)[ALL]
    assert bias.trained.per_answer(GROUP) == 15.0
    assert "nothing selected on length" in bias.verdict()


def test_long_answers_that_were_dropped_are_counted_and_named() -> None:
    line = trained(1, 4, 10.0, buffer__left__stale=4, buffer__left_tokens__stale=4 * GROUP * 90.0)
    bias = measure([line], GROUP)[ALL]
    assert bias.started().per_answer(GROUP) == 50.0
    assert "80% shorter" in bias.verdict()
    assert "4 of 8 groups left" in bias.verdict()


def test_dropping_that_took_short_and_long_alike_is_no_bias() -> None:
    line = trained(1, 4, 50.0, buffer__left__stale=2, buffer__left_tokens__stale=2 * GROUP * 51.0)
    assert "as long as started ones" in measure([line], GROUP)[ALL].verdict()


def test_counters_are_read_as_totals_so_far_and_a_resume_counts_nothing_twice() -> None:
    totals = [1, 3, 3, 2, 4]  # a resume went back to a checkpoint where 2 had left
    lines = [trained(step, 1, 10.0, buffer__left__stale=total) for step, total in enumerate(totals)]
    assert measure(lines, GROUP)[ALL].left["stale"].groups == 1 + 2 + 0 + 0 + 2


def test_a_run_without_a_trained_group_has_nothing_to_compare() -> None:
    assert "nothing to compare" in measure([], GROUP)[ALL].verdict()


def test_sources_are_told_apart() -> None:
    line = Line(
        1,
        1,
        1.0,
        {
            "training/off_policy/lag/0": 4.0,
            "response_length/mean": 30.0,
            "training/groups/openai/gsm8k": 2.0,
            "response_length/openai/gsm8k/mean": 20.0,
            "training/groups/digits": 2.0,
            "response_length/digits/mean": 40.0,
            "buffer/left/stale": 2.0,
            "buffer/left_tokens/stale": 2 * GROUP * 100.0,
            "buffer/left/stale/openai/gsm8k": 2.0,
            "buffer/left_tokens/stale/openai/gsm8k": 2 * GROUP * 100.0,
        },
    )
    bias = measure([line], GROUP)
    assert set(bias) == {ALL, "openai/gsm8k", "digits"}
    assert bias["openai/gsm8k"].started().per_answer(GROUP) == 60.0
    assert "shorter" in bias["openai/gsm8k"].verdict()
    assert "nothing selected" in bias["digits"].verdict()


def test_resampling_until_a_group_is_in_time_is_seen_to_lose_long_answers() -> None:
    # Lognormal lengths, a limit of three medians, groups of eight whose slowest answer decides: the design's example.
    rng = random.Random(7)
    kept: list[float] = []
    dropped: list[float] = []
    for _ in range(400):
        group = [rng.lognormvariate(0.0, 1.0) * 100 for _ in range(GROUP)]
        (dropped if max(group) > 300 else kept).append(sum(group))
    line = trained(
        1,
        len(kept),
        sum(kept) / len(kept) / GROUP,
        buffer__left__stale=len(dropped),
        buffer__left_tokens__stale=sum(dropped),
    )
    bias = measure([line], GROUP)[ALL]
    everyone = (sum(kept) + sum(dropped)) / 400 / GROUP
    assert abs((bias.started().per_answer(GROUP) or 0) - everyone) < 1e-6
    assert "shorter than started ones" in bias.verdict()
