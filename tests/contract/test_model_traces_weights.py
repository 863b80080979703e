"""What the weights model found in the first draft, replayed with real publishers, logs in Redis and engines."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.models.cases import WEIGHTS
from tests.models.explorer import Step
from tests.support.model_traces import broken_trace, in_order
from tests.support.model_weights import WeightsReplay
from tests.support.redis_server import RedisServer
from weightsync.acks import serving

HELD_ALREADY = "the version is held already; nothing was written"

ANSWERS: Mapping[str, Sequence[str]] = {
    "idem_flip": ["trainer: flip 1,1 (reply lost) -> is head"],
    "own_number": ["trainer: put_part 1,1 (delta) -> delta of 1.2", "network: flip 1,1 (late) -> head is 1.1"],
    "tree_names": ["server 0: stage 2,0 (whole) -> delta of 2.0", "server 1: activate 2,2 -> applied"],
    "engine_base": ["server 0: activate 1,1 (its host dies) -> applied", f"server 0: activate 1,1 -> {HELD_ALREADY}"],
    "write_once": ["trainer: put_part 1,1 (delta) -> is head already of 1.1", "server 0: activate 1,1 -> applied"],
    "ack_incarnation": ["server 0: put_ack 1,1 -> acknowledged 1.1", "server 0: register -> registered anew"],
    "publish_first": ["trainer: crash -> died"],
    "ask_engine": ["server 0: put_ack 1,0 -> acknowledged 1.1"],
    "withdraw": ["server 0: activate 1,1 -> applied"],
    "needs": ["transport: delete 1,1 (delta) -> 4 parts deleted"],
    "committed_anchor": [
        "trainer: crash (wrote an anchor and pruned, before its commit) -> died before the commit; 2 records stay"
    ],
    "lost_head": ["redis: lose tail -> head is 0.0"],
    "claim_nonce": [
        "redis: lose claim -> branch 1 owns the log",
        "trainer: claim 2,0 -> branch 2 at 0",
        "old trainer: flip 2,0 -> fenced",
    ],
    "owner": ["trainer: claim 2,0 -> branch 2 at 0", "old trainer: flip 1,1 -> fenced"],
}
"""Rule -> what its trace must have been answered."""

AFTERWARDS: Mapping[str, Sequence[tuple[Step, str]]] = {
    "idem_flip": [(Step("trainer", "advance snapshot"), "snapshot of 1.1")],
    "publish_first": [
        (Step("trainer", "claim"), "branch 2 at 0"),
        (Step("trainer", "put_part"), "delta of 2.0"),
        (Step("trainer", "flip"), "is head"),
    ],
    "needs": [
        (Step("trainer", "flip"), "is head"),
        (Step("server 0", "stage"), "no path"),
        (Step("trainer", "commit_anchor"), "written"),
        (Step("server 0", "stage"), "anchor of 1.1"),
    ],
    "lost_head": [(Step("trainer", "put_part"), "delta of 1.0"), (Step("trainer", "flip"), "is head")],
}
"""Rule -> what the next steps must be answered."""


@pytest.mark.parametrize("rule", WEIGHTS.broken)
def test_weight_sync_keeps_the_promise_that_the_draft_broke(
    rule: str, ledger_server: RedisServer, tmp_path: Path
) -> None:
    setting, trace = broken_trace(WEIGHTS, rule)
    root = tmp_path / f"trace-{rule.replace('_', '-')}"
    replay = WeightsReplay(setting, ledger_server, root)
    try:
        lines = [f"{step} -> {replay.play(step)}" for step in trace]
        assert in_order(lines, ANSWERS[rule]), lines
        if trace[-1].word in ("activate", "register"):  # it must say what it holds before it is given a request
            assert trace[-1].who.replace(" ", "-") not in serving(replay.log.acks(), [])
        for step, answer in AFTERWARDS.get(rule, ()):
            assert (str(step), replay.play(step)) == (str(step), answer)
        replay.finish()
    finally:
        replay.close()
