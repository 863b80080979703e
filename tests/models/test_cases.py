"""Every rule of the protocol is needed, and together they hold: the models explored within the bounds of the suite."""

from dataclasses import replace
from typing import Any

import pytest

from tests.models.cases import CASES, Cases
from tests.models.explorer import STUCK, explore, named

BROKEN = [(model, rule) for model, cases in CASES.items() for rule in cases.broken]
FIXED = [(model, case) for model, cases in CASES.items() for case in cases.fixed]

PROBLEMS = {
    "unique_branch": "never trained it",
    "branch_nonce": "never trained it",
    "branch_first": "never trained it",
    "reopen": "never trained it",
    "put_idem": "its payload is gone",
    "no_expiry": "trained twice",
    "nonce": "another writer's",
    "tree_lag": "a lag above the limit",
    "poison": "kill one trainer more",
    "fresh_retry": "for ever",
    "start_from": "born stale",
    "excuse": "its whole cluster was preempted",
    "tree_names": "garbage",
    "engine_base": "garbage",
    "write_once": "garbage",
    "ack_incarnation": "its acknowledgement says",
    "ask_engine": "its acknowledgement says",
    "withdraw": "its acknowledgement says",
    "committed_anchor": "no anchor leads to head",
    "owner": "an old trainer flips",
    "claim_nonce": "an old trainer flips after the takeover",
}
"""What is found without a rule; of those that are not here, that nothing moves any more."""
TWO_MEANINGS = {
    ("ledger", "own_ledger"): "trained twice",
    ("admission", "own_number"): "a lag above the limit",
    ("weights", "own_number"): "its parts make",
}


@pytest.mark.parametrize(("model", "rule"), BROKEN, ids=lambda value: str(value))
def test_without_a_rule_of_the_protocol_a_promise_is_broken(model: str, rule: str) -> None:
    explored = CASES[model].without(rule)
    found = explore(explored)
    expected = TWO_MEANINGS.get((model, rule)) or PROBLEMS.get(rule, STUCK)
    assert expected in str(found.problem)
    assert [step.word for step, _ in named(explored, found)] == [step.word for step in found.trace]


@pytest.mark.parametrize(("model", "case"), FIXED, ids=lambda value: str(value))
def test_with_all_rules_every_promise_is_kept_and_the_next_version_can_be_reached(model: str, case: str) -> None:
    cases: Cases = CASES[model]
    found = explore(cases.model(cases.fixed[case]))
    assert found.problem is None, [str(step) for step in found.trace]
    assert found.is_complete


@pytest.mark.parametrize("model", CASES)
def test_every_rule_has_a_case_and_every_case_has_all_rules_but_its_own(model: str) -> None:
    cases = CASES[model]
    rules = cases.rules()
    assert cases.broken.keys() == {name for name, value in vars(rules).items() if value is True}
    settings: list[Any] = [*cases.broken.values(), *cases.fixed.values(), *cases.large.values()]
    assert all(replace(setting).rules == rules for setting in settings)
