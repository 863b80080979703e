"""The seconds of a step, by phase: names, and what the phases add up to."""

from collections.abc import Mapping

from asyncrl.metrics.phases import OTHER
from asyncrl.trainer import evaluation, intake, publishing, saving

WAIT_GROUPS, WAIT_PUBLISH, WAIT_DEVICES = "wait_groups", "wait_publish", "wait_devices"
WAIT_EVALUATION, WAIT_RANKS = "wait_evaluation", "wait_ranks"
STALLS = (WAIT_GROUPS, WAIT_PUBLISH, WAIT_DEVICES, WAIT_EVALUATION)
"""Phases in which the trainer could train and does not: something of others is missing."""

OF_WAIT: Mapping[str, str] = {
    intake.FRESH: WAIT_GROUPS,
    intake.STALE: WAIT_GROUPS,
    publishing.NAME: WAIT_PUBLISH,
    publishing.AGAIN: WAIT_PUBLISH,
    publishing.LANDING: WAIT_PUBLISH,
    publishing.COPY: WAIT_PUBLISH,
    "trainer waits for the devices": WAIT_DEVICES,  # asyncrl.inference.sharing.WAIT, which the trainer does not import
    evaluation.NAME: WAIT_EVALUATION,
    evaluation.OPEN: WAIT_EVALUATION,
    evaluation.CLOSE: WAIT_EVALUATION,
    "rank waits for the others": WAIT_RANKS,
    "rank waits for rank 0": WAIT_RANKS,
    "trainer fetches groups": "fetch",
    "trainer updates the ledger": "ledger",
    saving.WRITE: "checkpoint",
    saving.COPY: "checkpoint",
    saving.LANDING: "checkpoint",
}
"""Wait -> its phase; a wait that is not here is a phase of its own name."""


def of_step(seconds: float, by_phase: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a step.

    Args:
        seconds: that it took, > 0.
        by_phase: the same by phase; they add up to it.
    """
    values = {f"timing_s/phase/{name}": spent for name, spent in by_phase.items()}
    values["perf/time/accounted_frac"] = 1.0 - by_phase.get(OTHER, 0.0) / seconds
    values["perf/stall_share"] = sum(by_phase.get(name, 0.0) for name in STALLS) / seconds
    return values
