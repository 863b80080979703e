"""`asyncrl sweep` is killed amid a variant: both commands stop in good order, and nothing is left, not even Redis."""

import json
from pathlib import Path

from tests.e2e.conftest import SMALL
from tests.support.commands import CONFIG, Command, last_step
from tests.support.left_behind import descendants_of, left_of, processes_of

STOPS_S = 180.0
"""trainer.stop_grace_s and a minute for the rest, as `asyncrl launch` asks for: a first publish may compile kernels."""


def test_what_a_killed_sweep_has_started_stops_in_good_order(starter: None, tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    words = ["sweep", str(CONFIG), "staleness.limit=1", *SMALL, "trainer.steps=1000", "--dir", str(root)]
    sweep = Command(words, tmp_path / "sweep.out")
    try:
        sweep.until("a variant", lambda: any(root.glob("*/metrics.jsonl")))
        (variant,) = (path.parent for path in root.glob("*/metrics.jsonl"))
        sweep.until("its first step", lambda: last_step(variant) >= 1)
        started = descendants_of(sweep.process.pid) | processes_of(root)
        for word in (" train ", " serve-rollout ", "trainer-rank", "rollout-worker", "local_server", "redis"):
            assert any(word in line for line in started.values()), word
    finally:
        sweep.close()
    del started[sweep.process.pid]
    assert left_of(started, STOPS_S) == {}
    assert left_of(processes_of(root), STOPS_S) == {}
    assert json.loads((variant / "outcome.json").read_text())["reason"] == "stopped", "the sweep can be gone on with"
