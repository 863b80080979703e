"""What the ledger model found in the first draft, replayed on both stores: the code answers as the repaired rule says.

Each trace is the shortest to a broken promise where one rule is left out. After it, and after nothing but progress, all
promises hold; what the code answered in the place where the draft went wrong stands in ANSWERS.
"""

from collections.abc import Mapping, Sequence

import pytest

from tests.models.cases import LEDGER
from tests.models.explorer import Step
from tests.support.model_ledger import LedgerReplay
from tests.support.model_traces import broken_trace, in_order
from tests.support.redis_server import RedisServer

ANSWERS: Mapping[str, Sequence[str]] = {
    "by_place": ["worker 0: release 0 -> waiting"],
    "window": ["worker 0: reserve 1 -> granted 1", "trainer: crash -> died"],
    "unique_branch": ["trainer: recover 1,0 -> branch 2 from 0.0-step0", "old trainer: commit 0 -> fenced"],
    "branch_nonce": ["trainer: recover 1,0 -> branch 1 from 0.0-step0", "old trainer: commit 0 -> fenced"],
    "branch_first": [
        "old trainer: checkpoint -> renamed 1.1-step1",
        "trainer: recover 3,1 -> branch 3 from 2.1-step1",
    ],
    "reopen": ["trainer: recover 2,0 (from an older checkpoint) -> branch 2 from 0.0-step0"],
    "lease_idem": ["trainer: lease (reply lost) -> no answer"],
    "put_idem": ["worker 0: put 0 (reply lost) -> no answer", "worker 0: put 0 -> ready"],
    "no_expiry": ["anyone: sweep 0 (its trainer stalls) -> expired ()", "worker 0: reserve 0 -> granted 1"],
    "own_ledger": ["worker 0: put 0 -> ready", "trainer: lease 0 -> too few"],
    "nonce": ["worker 0: put 0 -> fenced", "worker 1: write 0 -> written"],
    "tree_lag": ["worker 0: put 1 -> ready", "trainer: lease 1 -> too few"],
    "poison": ["trainer: lease 0 -> too few"],
}
"""Rule -> what its trace must have been answered."""

AFTERWARDS: Mapping[str, Sequence[tuple[Step, str]]] = {
    "by_place": [(Step("worker 0", "reserve"), "granted 0")],
    "window": [
        (Step("trainer", "recover"), "branch 2 from 0.0-step0"),
        (Step("worker 1", "reserve"), "window"),  # two are open, and the window is one group wide by now
        (Step("trainer", "lease"), "leased 0"),
    ],
    "reopen": [(Step("worker 0", "reserve"), "granted 0")],
    "lease_idem": [(Step("trainer", "lease"), "leased 0")],
    "nonce": [(Step("worker 1", "put"), "ready"), (Step("trainer", "lease"), "leased 0")],
    "tree_lag": [(Step("worker 0", "reserve"), "granted 1")],
}
"""Rule -> what the next steps must be answered."""


@pytest.mark.parametrize("rule", LEDGER.broken)
def test_the_ledger_keeps_the_promise_that_the_draft_broke(rule: str, ledger_server: RedisServer) -> None:
    setting, trace = broken_trace(LEDGER, rule)
    replay = LedgerReplay(setting, ledger_server, f"trace-{rule.replace('_', '-')}")
    try:
        lines = [f"{step} -> {replay.play(step)}" for step in trace]
        assert in_order(lines, ANSWERS[rule]), lines
        for step, answer in AFTERWARDS.get(rule, ()):
            assert replay.play(step) == answer
        replay.finish()
    finally:
        replay.close()
