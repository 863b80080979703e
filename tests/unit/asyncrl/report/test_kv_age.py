"""The age of reused keys and values: counted by tokens, added up over workers, written as what is new."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.report.kv_age import FACT, MOST, KvAge, KvAges, versions_between
from buffer.versions import pack


@pytest.mark.parametrize(
    ("older", "newer", "age"),
    [
        (pack(1, 4), pack(1, 4), 0),
        (pack(1, 4), pack(1, 6), 2),
        (pack(1, 9), pack(2, 3), 1),
        (pack(1, 3), pack(2, 7), 4),
        (0, pack(1, 1), 1),
        (pack(1, 4), pack(1, 3), 0),
        (pack(1, 0), pack(1, 1000), MOST),
    ],
)
def test_versions_between_two(older: int, newer: int, age: int) -> None:
    assert versions_between(older, newer) == age


def test_metrics_are_means_over_tokens() -> None:
    age = KvAge()
    assert age.metrics() == {}
    age.count(pack(1, 1), [(pack(1, 1), 30), (pack(1, 2), 60), (pack(1, 4), 10)], kept=True)
    age.prompt, age.reused = 40, 10
    assert age.metrics() == {
        "rollout/kv_age_mean": pytest.approx(0.9),
        "rollout/kv_age_max": 3.0,
        "rollout/kv_aged_share": pytest.approx(0.7),
        "rollout/kv_reused_share": 0.25,
    }


def test_a_cache_that_is_made_anew_has_no_age() -> None:
    age = KvAge()
    age.count(pack(1, 1), [(pack(1, 1), 3), (pack(1, 5), 4)], kept=False)
    assert age.metrics()["rollout/kv_age_max"] == 0.0
    assert age.tokens[0] == 7


@given(st.dictionaries(st.integers(0, MOST), st.integers(1, 1 << 40)), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_report_says_all_of_it(tokens: dict[int, int], prompt: int, reused: int) -> None:
    age = KvAge()
    age.tokens.update(tokens)
    age.prompt, age.reused = prompt, reused
    assert KvAge.from_fact(age.as_fact()) == age


def report(aged: int, fresh: int) -> dict[str, str]:
    age = KvAge()
    age.tokens.update({0: fresh, 2: aged})
    return {FACT: age.as_fact()}


def test_each_step_has_what_its_workers_added_and_a_broken_report_costs_itself_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ages = KvAges()
    ages.update({"worker-0": report(10, 10), "trainer": {"step": "1"}, "worker-1": {FACT: "no JSON"}})
    assert ages.drain()["rollout/kv_aged_share"] == 0.5
    assert "worker-1" in caplog.text
    assert ages.drain() == {}
    with caplog.at_level(logging.ERROR):
        ages.update({"worker-0": report(10, 20), "worker-2": report(30, 0)})
        ages.update({"worker-0": report(10, 30), "worker-2": report(30, 0)})
    found = ages.drain()
    assert found["rollout/kv_aged_share"] == pytest.approx(0.6)
    assert found["rollout/kv_age_mean"] == pytest.approx(1.2)
