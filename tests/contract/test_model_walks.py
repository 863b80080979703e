"""Model and code side by side on random walks: after every step both have every ordinal in the same state.

So what an exploration proves of the model holds for the code as far as the two do the same, and a transition that is
changed in one of them only is found here.
"""

from collections.abc import Iterator
from typing import Any

from buffer.ledger import TRANSITIONS
from tests.models.admission.model import AdmissionModel
from tests.models.admission.state import Faults as AdmissionFaults
from tests.models.admission.state import Setting as AdmissionSetting
from tests.models.ledger.model import LedgerModel
from tests.models.ledger.state import Faults as LedgerFaults
from tests.models.ledger.state import Setting as LedgerSetting
from tests.models.words import NOT_MODELLED
from tests.support.model_admission import AdmissionReplay
from tests.support.model_ledger import LedgerReplay
from tests.support.model_traces import walk
from tests.support.redis_server import RedisServer

LEDGER = {
    "crashes and lost replies": LedgerSetting(faults=LedgerFaults(2, 2, 2, 1), ordinals=5),
    "two workers, limit 1": LedgerSetting(
        faults=LedgerFaults(2, 2, 2), limit=1, per_version=2, workers=2, versions=3, ordinals=9
    ),
    "an older checkpoint": LedgerSetting(faults=LedgerFaults(2, 1, 1, 0, 0, 1), limit=1, ordinals=5),
    "a lost tail": LedgerSetting(faults=LedgerFaults(2, 1, 1, 0, 1), limit=1, workers=2, ordinals=5),
    "a group that kills trainers": LedgerSetting(faults=LedgerFaults(1, 1, 1), poisonous=(1,), limit=1, ordinals=5),
}
ALL_FAULTS = AdmissionFaults(2, 1, 1, 1, 1, 1, 2, 2)
ADMISSION = {
    "drop": AdmissionSetting(
        faults=ALL_FAULTS, limit=2, per_version=2, workers=3, versions=4, ordinals=14, max_groups=9, checkpoint_every=2
    ),
    "wait": AdmissionSetting(
        faults=ALL_FAULTS, policy="wait", per_version=2, workers=3, versions=4, ordinals=14, checkpoint_every=2
    ),
    "in order": AdmissionSetting(
        faults=ALL_FAULTS, order="ordinal", limit=2, workers=3, versions=5, ordinals=14, max_groups=4
    ),
    "few bytes and attempts": AdmissionSetting(
        faults=ALL_FAULTS, versions=5, ordinals=14, max_groups=2, checkpoint_every=9, max_attempts=2
    ),
}
NUM_STEPS = 45


SEEDS = {"a lost tail": "a lost tail 59"}
"""Where another seed than the name is needed for every transition to take part."""


def words_of(replay: LedgerReplay | AdmissionReplay, model: Any, name: str) -> Iterator[str]:
    """Play a walk, compare after each step, and get to the next version from wherever it ends."""
    try:
        for step, state in walk(model, SEEDS.get(name, name), NUM_STEPS):
            replay.play(step)
            replay.compare(state)
            yield step.word
        replay.finish()
    finally:
        replay.close()


def test_the_stores_do_what_the_models_do_and_every_transition_takes_part(ledger_server: RedisServer) -> None:
    words: set[str] = set()
    for place, (name, setting) in enumerate(LEDGER.items()):
        words |= set(words_of(LedgerReplay(setting, ledger_server, f"walk-{place}"), LedgerModel(setting), name))
    for place, (name, limits) in enumerate(ADMISSION.items()):
        replay = AdmissionReplay(limits, ledger_server, f"admission-walk-{place}")
        words |= set(words_of(replay, AdmissionModel(limits), name))
    assert TRANSITIONS.keys() - NOT_MODELLED.keys() <= words
