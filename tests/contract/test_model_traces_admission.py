"""What the admission model found in the first draft, replayed on both stores: the code does as the repaired rule says.

The buffer answers; what is the trainer's part (publish before and while it waits, checkpoint when bytes refuse) the
replay does as `asyncrl.trainer` has to.
"""

from collections.abc import Mapping, Sequence

import pytest

from tests.models.cases import ADMISSION
from tests.models.explorer import Step
from tests.support.model_admission import AdmissionReplay
from tests.support.model_traces import broken_trace, in_order
from tests.support.redis_server import RedisServer

ANSWERS: Mapping[str, Sequence[str]] = {
    "at_lease": ["trainer: lease 2 -> held"],
    "surplus": ["worker: sample 2,0 -> server 0 is older than 1"],
    "fresh_retry": ["worker: park 0 -> parked", "worker: release 0 (abandoned) -> abandoned"],
    "early_ck": [],
    "credit": ["worker: park 0 -> parked", "worker: put 1 -> ready"],
    "dead_cap": ["worker: release 0 (fatal) -> corrupt_payload"],
    "own_number": ["trainer: publish 2 (fails) -> head is 1", "trainer: lease -> too few, 1 left"],
    "retry_publish": ["trainer: publish 1 (fails) -> head is 0"],
    "publish_waiting": ["worker: reserve 2 -> granted 2", "worker: filter 1 -> filtered"],
    "start_from": ["worker: sample 2,0 -> server 0 is older than 1"],
    "excuse": ["anyone: sweep 0,1 -> expired 0,1; dead none"],
}
"""Rule -> what its trace must have been answered."""

AFTERWARDS: Mapping[str, Sequence[tuple[Step, str]]] = {
    "at_lease": [(Step("worker", "put", (1,)), "ready"), (Step("trainer", "lease"), "leased 1")],
    "surplus": [(Step("trainer", "lease"), "too few")],  # ordinal 1 is in the batch that waits, not left behind it
    "early_ck": [
        *(
            (Step("worker", word, (0, 0)), answer)
            for word, answer in (("reserve", "granted 0"), ("sample", "sampled of 0"))
        ),
        (Step("worker", "put", (0,)), "ready"),
        (Step("trainer", "lease"), "leased 0"),
        (Step("trainer", "train"), "at 1"),
        (Step("trainer", "publish"), "head is 1"),
        (Step("trainer", "advance"), "at 1"),
        (Step("server", "follow"), "at 1"),
        (Step("worker", "reserve"), "granted 1"),
        (Step("worker", "sample", (1, 1)), "sampled of 1"),
        (Step("worker", "put", (1,)), "ready"),
        (Step("trainer", "lease"), "leased 1"),
        (Step("trainer", "train"), "at 2"),
        (Step("trainer", "publish"), "head is 2"),
        (Step("trainer", "advance"), "at 2"),
        (Step("worker", "reserve"), "bytes"),
        (Step("trainer", "lease"), "committed early"),
        (Step("worker", "reserve"), "granted 2"),
    ],
    "credit": [
        (Step("anyone", "sweep"), "expired 0; dead none"),
        (Step("worker", "reserve"), "granted 0 with tokens of 0"),
    ],
    "dead_cap": [(Step("worker", "reserve"), "granted 1")],
    "retry_publish": [(Step("trainer", "advance"), "at 1"), (Step("worker", "reserve"), "granted 1")],
    "publish_waiting": [(Step("worker", "sample", (2, 0)), "server 0 is older than 1")],
    "excuse": [(Step("worker", "reserve"), "granted 0")],
}
"""Rule -> what the next steps must be answered."""


@pytest.mark.parametrize("rule", ADMISSION.broken)
def test_admission_keeps_the_promise_that_the_draft_broke(rule: str, ledger_server: RedisServer) -> None:
    setting, trace = broken_trace(ADMISSION, rule)
    replay = AdmissionReplay(setting, ledger_server, f"admission-{rule.replace('_', '-')}")
    try:
        lines = [f"{step} -> {replay.play(step)}" for step in trace]
        assert in_order(lines, ANSWERS[rule]), lines
        for step, answer in AFTERWARDS.get(rule, ()):
            assert (str(step), replay.play(step)) == (str(step), answer)
        replay.finish()
    finally:
        replay.close()


def test_tokens_that_are_too_old_to_be_trained_on_are_not_gone_on_from(ledger_server: RedisServer) -> None:
    """The last step of the trace without `fresh_retry`: the ordinal comes back, its tokens do not."""
    setting, trace = broken_trace(ADMISSION, "fresh_retry")
    replay = AdmissionReplay(setting, ledger_server, "admission-too-old")
    try:
        answers = [replay.play(step) for step in trace]
        assert (trace[-1].word, answers[-1]) == ("reserve", "granted 0")
        assert replay.buffer.audit().by_reason["stale_partials"] == 1
    finally:
        replay.close()
