"""The length-bias report says whether long answers were lost, counting those that were dropped and those cut off."""

from typing import Any

import pytest

from asyncrl.report.answer_lengths import AnswerLengths
from asyncrl.report.length_bias import ALL, measure, of_tokens
from asyncrl.report.lines import Line
from buffer.books import Spent
from buffer.tokens import TokenLedger


def step(number: int, answers: float, length: float, stale: float = 0, stale_length: float = 0) -> Line:
    values = {"buffer/num_answers": answers, "response_length/mean": length}
    if stale:
        values |= {"buffer/left/stale/answers": stale, "buffer/left/stale/response_length/mean": stale_length}
    return Line(number, 1, float(number), values)


def ledger(**fates: dict[str, tuple[int, int]]) -> TokenLedger:
    """Names with / are written with __."""
    spent = {
        (fate.replace("__", "/"), source): Spent(source, *ended)
        for fate, by_source in fates.items()
        for source, ended in by_source.items()
    }
    return TokenLedger(sum(one.tokens for one in spent.values()), 0, spent)


def cut(*lengths: int, finished: tuple[int, ...] = ()) -> AnswerLengths:
    found = AnswerLengths()
    found.add(lengths, cut=True)
    found.add(finished)
    return found


def test_a_run_that_dropped_nothing_has_no_bias() -> None:
    bias = measure([step(1, 4, 10.0), step(2, 4, 20.0)])[ALL]
    assert bias.trained.per_answer() == 15.0
    assert "nothing selected on length" in bias.verdict()


def test_steps_weigh_by_their_answers() -> None:
    assert measure([step(1, 1, 10.0), step(2, 3, 20.0)])[ALL].trained.per_answer() == 17.5


def test_long_answers_that_were_dropped_are_counted_and_named() -> None:
    bias = measure([step(1, 4, 10.0, stale=4, stale_length=90.0)])[ALL]
    started = bias.started()
    assert started is not None
    assert (started.tokens, started.at_least) == (50.0, False)
    assert "Trained answers are 80% shorter than started ones" in bias.verdict()
    assert "4 of 8 answers left" in bias.verdict()


def test_greedy_answers_are_in_the_ledger_and_not_among_the_answers_that_are_compared() -> None:
    values = step(1, 4, 10.0, stale=2, stale_length=10.0).values
    line = Line(1, 1, 1.0, {**values, "training/masked_tokens/baseline/toy": 90.0})
    bias = measure([line], None, ledger_json(trained=(5, 130), stale__expired=(3, 110)))[ALL]
    assert (bias.trained.answers, bias.trained.per_answer()) == (4, 10.0)
    assert (bias.left["stale"].answers, bias.left["stale"].per_answer()) == (2, 10.0)


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
            "buffer/num_answers": 4.0,
            "response_length/mean": 30.0,
            "buffer/num_answers/openai/gsm8k": 2.0,
            "response_length/openai/gsm8k/mean": 20.0,
            "response_length/openai/gsm8k/le_24": 2.0,
            "buffer/num_answers/digits": 2.0,
            "response_length/digits/mean": 40.0,
            "response_length/digits/le_48": 2.0,
            "buffer/left/stale/answers": 2.0,
            "buffer/left/stale/response_length/mean": 100.0,
            "buffer/left/stale/answers/openai/gsm8k": 2.0,
            "buffer/left/stale/response_length/openai/gsm8k/mean": 100.0,
            "buffer/left/stale/response_length/openai/gsm8k/le_128": 2.0,
        },
    )
    bias = measure([line])
    assert set(bias) == {ALL, "openai/gsm8k", "digits"}
    assert bias["openai/gsm8k"].seen().per_answer() == 60.0
    assert dict(bias["openai/gsm8k"].classes.finished) == {24: 2, 128: 2}
    assert dict(bias[ALL].classes.finished) == {24: 2, 48: 2, 128: 2}
    assert "shorter" in bias["openai/gsm8k"].verdict()
    assert "nothing selected" in bias["digits"].verdict()


def test_answers_cut_off_count_as_longer_than_they_had_got() -> None:
    line = Line(
        1,
        1,
        1.0,
        {
            "buffer/num_answers": 4.0,
            "response_length/mean": 40.0,
            "buffer/num_answers/toy": 4.0,
            "response_length/toy/mean": 40.0,
            "response_length/toy/le_16": 2.0,
            "response_length/toy/le_64": 2.0,
        },
    )
    # Two more were cut at 32 tokens: they would have gone on as those did that were longer than 32.
    fates = ledger_json(trained=(4, 160), failed__doomed=(2, 64))
    bias = measure([line], {"toy": cut(32, 32)}, fates)
    started = bias[ALL].started()
    assert started is not None
    assert bias[ALL].seen().per_answer() == pytest.approx(224 / 6)
    assert started.tokens == pytest.approx((2 * 14 + 4 * 56) / 6 * 160 / 140, rel=0.1)
    assert not started.at_least


def test_an_estimate_whose_longest_answers_were_all_cut_is_called_a_bound() -> None:
    bias = measure([step(1, 8, 10.0)], {"toy": cut(100, 100)}, ledger_json(trained=(8, 80), failed__doomed=(2, 200)))
    assert bias["toy"].started().at_least  # type: ignore[union-attr]  # there are answers
    assert "Trained answers are at least " in bias["toy"].verdict()
    assert "2 of them unfinished and counted as at least as long as they had got" in bias["toy"].verdict()


def ledger_json(**fates: tuple[int, int]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, Any] = ledger(**{fate: {"toy": ended} for fate, ended in fates.items()}).to_json()["fates"]
    return found


def test_the_token_ledger_alone_gives_totals_and_bounds() -> None:
    bias = of_tokens(
        ledger(
            trained={"a": (10, 900), "b": (10, 1000)},
            masked={"a": (0, 100)},
            stale__resubmitted={"a": (10, 3000)},
            failed__doomed={"b": (2, 10)},
            failed__worker_lost={"": (0, 70_000)},
            evaluated={"a": (50, 99_999)},
            rolled_back={"a": (8, 99_999)},
        )
    )
    assert bias["a"].trained.per_answer() == 100.0, "masked tokens are of trained answers"
    assert bias["a"].seen().per_answer() == 200.0
    assert "Trained answers are 50% shorter than started ones" in bias["a"].verdict()
    assert bias["b"].started().at_least  # type: ignore[union-attr]
    assert "started ones may be longer" in bias["b"].verdict()
    assert bias[ALL].seen().answers == 32.0
    assert bias[ALL].seen().tokens == 5010.0, "tokens of unknown answers tell no length"


def test_the_ledger_knows_what_the_lines_do_not() -> None:
    # Groups that were stale when they came in never reach a lease, so no step's line has them.
    lines = [step(1, 8, 10.0)]
    assert "nothing selected" in measure(lines)[ALL].verdict()
    known = measure(lines, None, ledger_json(trained=(8, 80), stale__resubmitted=(8, 400)))
    assert "67% shorter" in known[ALL].verdict()
    assert "67% shorter" in known["toy"].verdict()


def test_a_bound_is_never_below_what_was_seen() -> None:
    # Workers reported two short cuts; the ledger knows of lost answers that had got far.
    bias = measure([], {"toy": cut(1, finished=(2,))}, ledger_json(trained=(1, 2), failed__worker_lost=(1, 500)))
    started = bias["toy"].started()
    assert started is not None
    assert (started.tokens, started.at_least) == (251.0, True)


@pytest.mark.parametrize("source", [ALL, "toy"])
def test_the_json_says_what_is_a_bound(source: str) -> None:
    bias = measure([], None, ledger_json(trained=(4, 40), failed__reward_failed=(4, 80)))[source]
    assert bias.to_json() == {
        "trained": {"answers": 4, "tokens_per_answer": 10.0, "at_least": False},
        "started": {"answers": 8, "tokens_per_answer": 15.0, "at_least": True, "seen_per_answer": 15.0},
        "left": {"failed/reward_failed": {"answers": 4, "tokens_per_answer": 20.0, "at_least": True}},
        "verdict": bias.verdict(),
    }
