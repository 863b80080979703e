"""The length-bias report says whether long answers were lost, counting those that were dropped."""

import random

from asyncrl.report.length_bias import ALL, measure
from asyncrl.report.lines import Line


def step(number: int, groups: float, length: float, stale: float = 0, stale_length: float = 0) -> Line:
    values = {"buffer/num_groups": groups, "response_length/mean": length}
    if stale:
        values |= {"buffer/left/stale/groups": stale, "buffer/left/stale/response_length/mean": stale_length}
    return Line(number, 1, float(number), values)


def test_a_run_that_dropped_nothing_has_no_bias() -> None:
    bias = measure([step(1, 4, 10.0), step(2, 4, 20.0)])[ALL]
    assert bias.trained.per_answer() == 15.0
    assert "nothing selected on length" in bias.verdict()


def test_steps_weigh_by_their_groups() -> None:
    assert measure([step(1, 1, 10.0), step(2, 3, 20.0)])[ALL].trained.per_answer() == 17.5


def test_long_answers_that_were_dropped_are_counted_and_named() -> None:
    bias = measure([step(1, 4, 10.0, stale=4, stale_length=90.0)])[ALL]
    assert bias.started().per_answer() == 50.0
    assert "80% shorter" in bias.verdict()
    assert "4 of 8 groups left" in bias.verdict()


def test_dropping_that_took_short_and_long_alike_is_no_bias() -> None:
    assert "as long as started ones" in measure([step(1, 4, 50.0, stale=2, stale_length=51.0)])[ALL].verdict()


def test_a_run_without_a_trained_group_has_nothing_to_compare() -> None:
    assert "nothing to compare" in measure([])[ALL].verdict()


def test_sources_are_told_apart() -> None:
    line = Line(
        1,
        1,
        1.0,
        {
            "buffer/num_groups": 4.0,
            "response_length/mean": 30.0,
            "buffer/num_groups/openai/gsm8k": 2.0,
            "response_length/openai/gsm8k/mean": 20.0,
            "buffer/num_groups/digits": 2.0,
            "response_length/digits/mean": 40.0,
            "buffer/left/stale/groups": 2.0,
            "buffer/left/stale/response_length/mean": 100.0,
            "buffer/left/stale/groups/openai/gsm8k": 2.0,
            "buffer/left/stale/response_length/openai/gsm8k/mean": 100.0,
        },
    )
    bias = measure([line])
    assert set(bias) == {ALL, "openai/gsm8k", "digits"}
    assert bias["openai/gsm8k"].started().per_answer() == 60.0
    assert "shorter" in bias["openai/gsm8k"].verdict()
    assert "nothing selected" in bias["digits"].verdict()


def test_resampling_until_a_group_is_in_time_is_seen_to_lose_long_answers() -> None:
    # Lognormal lengths, a limit of three medians, groups of eight whose slowest answer decides: the design's example.
    rng = random.Random(7)
    kept: list[float] = []
    dropped: list[float] = []
    for _ in range(400):
        group = [rng.lognormvariate(0.0, 1.0) * 100 for _ in range(8)]
        (dropped if max(group) > 300 else kept).append(sum(group) / 8)
    line = step(1, len(kept), sum(kept) / len(kept), stale=len(dropped), stale_length=sum(dropped) / len(dropped))
    bias = measure([line])[ALL]
    assert abs((bias.started().per_answer() or 0) - (sum(kept) + sum(dropped)) / 400) < 1e-6
    assert "shorter than started ones" in bias.verdict()
