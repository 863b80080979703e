"""The models speak the protocol's words: every label is a transition, and every transition is modelled or excused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from buffer.books import OPEN
from buffer.ledger import TRANSITIONS
from tests.models.admission.state import Faults as AdmissionFaults
from tests.models.admission.state import Setting as AdmissionSetting
from tests.models.cases import ADMISSION, LEDGER, WEIGHTS, Cases
from tests.models.explorer import Step, explore
from tests.models.ledger.state import Faults as LedgerFaults
from tests.models.ledger.state import Setting as LedgerSetting
from tests.models.weights.state import Faults as WeightsFaults
from tests.models.weights.state import Setting as WeightsSetting
from tests.models.words import HAPPENINGS, LOG_NOT_MODELLED, MOVES_NOT_MODELLED, NOT_MODELLED
from weightsync.log.base import VersionLog
from weightsync.receiver import Receiver
from weightsync.transport import Transport

Moved = set[tuple[str, str | None, str]]
StatesOf = Callable[[Any], list[str]]
"""State of the model -> where each ordinal is."""
TABLE: Any = TRANSITIONS  # its rules are functions of many types
ANY = ("commit", "recover")
"""Words whose moves are of any state to any kind."""

LEDGER_SETTINGS = [
    replace(LEDGER.fixed["a filtered group"], faults=LedgerFaults(1, 1, 0, 1)),
    LedgerSetting(faults=LedgerFaults(tails=1), ordinals=3),
    LedgerSetting(faults=LedgerFaults(), poisonous=(0,)),
]
ADMISSION_SETTINGS = [
    AdmissionSetting(faults=AdmissionFaults(deaths=1, filtered=1, parks=1, stops=1), versions=1, limit=0, ordinals=3),
    AdmissionSetting(faults=AdmissionFaults(letters=1, resubmits=1), versions=1, limit=0),
    AdmissionSetting(faults=AdmissionFaults(deaths=2), max_attempts=1, versions=1, limit=0),
    AdmissionSetting(faults=AdmissionFaults(publishes=1, preemptions=1), versions=2, limit=1),
]


def watched(model: Any, states_of: StatesOf) -> tuple[set[str], Moved]:
    """All words that an exploration meets, and the moves of ordinals that go with them."""
    words: set[str] = set()
    moved: Moved = set()

    def watch(before: Any, step: Step, after: Any) -> None:
        words.add(step.word)
        was, now = states_of(before), states_of(after)
        if was != now and step.word != "lose tail":
            padded: list[str | None] = [*was, *(None for _ in now[len(was) :])]
            moved.update((step.word, b, a) for b, a in zip(padded, now, strict=True) if a != b)

    found = explore(model, watch=watch)
    assert found.problem is None
    assert found.is_complete
    return words, moved


@pytest.fixture(scope="module")
def explored() -> tuple[dict[str, set[str]], Moved]:
    words: dict[str, set[str]] = {}
    moved: Moved = set()
    todo: list[tuple[str, Cases, Sequence[Any], StatesOf]] = [
        ("ledger", LEDGER, LEDGER_SETTINGS, lambda state: [e.state for e in state.books.entries]),
        ("admission", ADMISSION, ADMISSION_SETTINGS, lambda state: [e.state for e in state.entries]),
    ]
    for name, cases, settings, states_of in todo:
        words[name] = set()
        for setting in settings:
            found, moves = watched(cases.model(setting), states_of)
            words[name] |= found
            moved |= moves
    return words, moved


@pytest.mark.parametrize("model", ["ledger", "admission"])
def test_every_label_is_a_transition_or_a_named_happening(
    model: str, explored: tuple[dict[str, set[str]], Moved]
) -> None:
    words, _ = explored
    assert words[model] - TRANSITIONS.keys() == HAPPENINGS[model].keys()


def test_every_transition_is_in_a_model_or_excused(explored: tuple[dict[str, set[str]], Moved]) -> None:
    words, _ = explored
    modelled = (words["ledger"] | words["admission"]) & TRANSITIONS.keys()
    assert TRANSITIONS.keys() - modelled == NOT_MODELLED.keys()
    movers = {word for word, (_, moves) in TABLE.items() if any(b != a for b, a in moves)}
    assert movers <= modelled, "what moves an ordinal cannot be excused"


def test_the_models_move_ordinals_only_as_the_table_says(explored: tuple[dict[str, set[str]], Moved]) -> None:
    _, moved = explored
    table = {(word, b, a) for word, (_, moves) in TABLE.items() for b, a in moves}
    assert moved - table == set()


def test_every_move_of_the_table_is_made_by_a_model_or_excused(explored: tuple[dict[str, set[str]], Moved]) -> None:
    _, moved = explored
    table = {(word, b, a) for word, (_, moves) in TABLE.items() for b, a in moves if word not in ANY and a != b}
    assert table - moved == MOVES_NOT_MODELLED.keys()


def test_commit_and_recover_close_what_is_open_in_a_model_too(explored: tuple[dict[str, set[str]], Moved]) -> None:
    _, moved = explored
    assert {(word, "leased", "consumed") for word in ANY} <= moved
    assert {("recover", "leased", to) for to in ("ready", "dead")} <= moved
    assert any(word in ANY and before in OPEN for word, before, _ in moved)


def test_every_word_of_the_weights_model_is_a_call_of_weight_sync_or_a_named_happening() -> None:
    words: set[str] = set()
    for faults in (
        WeightsFaults(crashes=1),
        WeightsFaults(servers=1, hosts=1),
        WeightsFaults(replies=1, anchors=1),
        WeightsFaults(losses=1, tails=1),
        WeightsFaults(crashes=1, claims=1),
    ):
        words |= watched(WEIGHTS.model(WeightsSetting(faults=faults, versions=1)), lambda state: [])[0]
    calls = {name for door in (VersionLog, Transport, Receiver) for name in vars(door) if not name.startswith("_")}
    assert words - calls == HAPPENINGS["weights"].keys()
    reads = {"owner", "confirm", "record", "records", "digest_of", "document", "endpoints", "servers", "acks", "needs"}
    reads |= {"wish", "pin", "watch", "wait", "roster", "orders", "adoptions"}
    changes = {name for name, value in vars(VersionLog).items() if callable(value) and not name.startswith("_")}
    assert changes - reads - words - {"close"} == LOG_NOT_MODELLED.keys()
