"""The arithmetic of staleness: the golden cases, and the rules that the protocol states in words."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from buffer import staleness
from tests.support.golden_cases import CASES_DIR
from tests.support.staleness_cases import STALENESS

Case = Mapping[str, Any]  # as its JSON holds it

CASES = [
    case
    for path in sorted(CASES_DIR.glob("*.json"))
    for case in json.loads(path.read_text())["cases"]
    if case["function"] in STALENESS
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_golden_case_of_staleness_gives_its_expected_result(case: Case) -> None:
    assert STALENESS[case["function"]](case["inputs"], case["params"]) == case["expected"]


def test_with_limit_zero_one_version_of_groups_is_admitted() -> None:
    window = staleness.window(0, 8)
    assert [staleness.admits(ahead, 0, window) for ahead in (0, 7, 8)] == [True, True, False]
    assert [staleness.admits(ahead, 5, window) for ahead in (2, 3)] == [True, False]


@pytest.mark.parametrize(
    ("ahead", "taken", "number"), [(0, 0, 5), (3, 0, 5), (4, 0, 6), (0, 4, 6), (3, 4, 6), (8, 0, 7)]
)
def test_a_group_is_due_after_the_full_versions_before_it(ahead: int, taken: int, number: int) -> None:
    assert staleness.due(5, ahead, taken, 4) == number
    assert staleness.start_from(5, ahead, taken, 4, 2) == number - 2


def test_a_group_started_where_it_may_start_is_fresh_when_it_is_due() -> None:
    for limit in range(4):
        for ahead in range((limit + 1) * 3):
            start = staleness.start_from(10, ahead, 0, 3, limit)
            due = staleness.due(10, ahead, 0, 3)
            assert staleness.lag(due, start) <= limit
            assert start <= 10, "some server may start it now"


def test_the_lag_at_the_limit_is_allowed_and_the_next_is_not() -> None:
    assert staleness.stale({"a": 5, "b": 4, "c": 3}, 5, 1) == ["c"]
    assert staleness.last_chance(4, 5, 1)
    assert not staleness.last_chance(5, 5, 1)


def test_a_server_ahead_of_the_trainer_has_lag_zero() -> None:
    assert staleness.lag(5, 7) == 0


@pytest.mark.parametrize(
    ("ready_last", "in_flight_last", "count", "remaining", "waits"),
    [
        (0, 1, 4, 4, True),
        (3, 1, 4, 4, True),
        (4, 1, 4, 4, False),  # the batch is full of last-chance groups
        (0, 0, 4, 4, False),  # nobody to wait for
        (0, 1, 2, 4, False),  # a later batch of this version takes it
        (0, 3, 2, 4, True),  # the later batch does not hold them all
    ],
)
def test_a_lease_waits_only_for_what_fits_its_batch_and_no_later_one(
    ready_last: int, in_flight_last: int, count: int, remaining: int, waits: bool
) -> None:
    assert staleness.must_wait(ready_last, in_flight_last, count, remaining) is waits


def test_a_group_is_doomed_when_even_the_first_version_that_could_take_it_is_too_late() -> None:
    assert not staleness.doomed(4, 6, 2)
    assert staleness.doomed(3, 6, 2)
