"""Every golden case whose function this package has gives the expected numbers."""

import json

import pytest

from tests.unit.asyncrl.algorithms.adapters import ADAPTERS
from tests.unit.asyncrl.algorithms.golden import CASES_DIR, Case, compare, load_cases

CASES = load_cases()

ELSEWHERE = {"stale.admit", "stale.drop", "stale.wait", "stale.filter_lag"}
"""Rules of the replay buffer, which knows no tensors; tested there."""

ABSENT = {
    "adv.gae",
    "adv.gdpo",
    "adv.otb",
    "adv.otb_multi_turn",
    "adv.remax",
    "loss.clip_cov",
    "loss.kl_cov",
    "loss.value",
    "pref.pair",
    "pref.sppo",
}
"""Functions that this package does not have: no algorithm of the table uses them."""


@pytest.mark.parametrize("case", [c for c in CASES if c.function in ADAPTERS], ids=lambda case: case.name)
def test_a_golden_case_gives_its_expected_numbers(case: Case) -> None:
    compare(case, ADAPTERS[case.function](case.inputs, case.params))


def test_every_case_of_every_file_belongs_to_a_known_function() -> None:
    assert {case.function for case in CASES} <= ADAPTERS.keys() | ELSEWHERE | ABSENT
    assert not ADAPTERS.keys() & (ELSEWHERE | ABSENT)


def test_no_case_of_any_file_was_lost_in_loading() -> None:
    held = sum(len(json.loads(path.read_text())["cases"]) for path in CASES_DIR.glob("*.json"))
    assert len({case.name for case in CASES}) == len(CASES) == held == 266
