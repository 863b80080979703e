"""The kill -9 soak in its short form; `scripts/bench soak --minutes 10` is the long one, with the same judgement."""

from tests.support.soak.faults import FAULTS
from tests.support.soak.soak import soak

SEED, SECONDS = 0, 10.0


def test_every_ordinal_ends_once_whatever_is_killed_frozen_lost_or_damaged() -> None:
    """Eight producers, a trainer and its rivals, a server; every kind of fault at least once.

    B003, B004: what a dead consumer held is trained by the next one. B167: nothing of a lost branch is trained.
    """
    report = soak(SEED, SECONDS)
    told = f"seed {SEED}, figures {report.figures}"
    assert report.violations == [], told
    assert {kind for kind in FAULTS if not report.faults[kind]} == set(), told
    events = report.figures["events"]
    for what in ("fenced", "behind", "corrupt_payload", "poisoned", "sweep_excused", "sweep_guarded", "continued"):
        assert events.get(what), f"{what}: {told}"
    assert report.figures["consumed"] >= 30, told
