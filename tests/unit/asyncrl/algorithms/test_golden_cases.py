"""Every golden case gives the expected numbers.

ASYNCRL_GOLDEN_DIR names another directory of files of the same schema, whose cases are then the ones that run.
"""

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest

from tests.support.golden_cases import CASES_DIR, OWN_CASES
from tests.unit.asyncrl.algorithms.adapters import ADAPTERS
from tests.unit.asyncrl.algorithms.golden import Case, compare, in_float64, load_cases

CASES = load_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_case_gives_its_expected_numbers(case: Case) -> None:
    compare(case, ADAPTERS[case.function](case.inputs, case.params))
    compare(case, ADAPTERS[case.function](in_float64(case).inputs, case.params))


def test_every_case_of_every_file_belongs_to_a_known_function() -> None:
    assert {case.function for case in CASES} <= ADAPTERS.keys()


def test_no_case_of_any_file_was_lost_in_loading() -> None:
    held = [case["name"] for path in CASES_DIR.glob("*.json") for case in json.loads(path.read_text())["cases"]]
    assert held, f"{CASES_DIR} holds no cases: nothing was tested. Look at ASYNCRL_GOLDEN_DIR."
    assert Counter(held) == Counter(case.name for case in CASES)
    assert len(set(held)) == len(held), "a name is unique over all files"


@pytest.mark.skipif(CASES_DIR != OWN_CASES, reason="other files than the repository's own may hold any selection")
def test_every_function_has_a_case_of_its_own() -> None:
    assert {case.function for case in CASES} == ADAPTERS.keys()


def test_another_directory_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[3] / "support" / "golden_cases.py"
    monkeypatch.setenv("ASYNCRL_GOLDEN_DIR", "/somewhere/else")
    assert runpy.run_path(str(script))["CASES_DIR"] == Path("/somewhere/else")
    monkeypatch.delenv("ASYNCRL_GOLDEN_DIR")
    assert runpy.run_path(str(script))["CASES_DIR"] == OWN_CASES
