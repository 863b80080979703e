"""Directories of runs that have ended, as the commands leave them, with numbers that a test chooses."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = """
run: {{name: r, dir: {directory}}}
mode: {mode}
schedule: {{groups_per_step: 4}}
rollout: {{n: 2, slots: 24, workers: 2}}
staleness: {{limit: {limit}}}
inference: {{servers: 1}}
"""
STEP = {
    "timing_s/step": 2.0,
    "timing_s/update_actor": 0.5,
    "timing_s/publish_blocked": 0.05,
    "timing_s/publish/align": 0.01,
    "timing_s/publish/upload": 0.02,
    "timing_s/publish/flip": 0.03,
    "timing_s/wait/stale_groups": 0.75,
    "timing_s/wait/trainer waits for fresh groups": 0.25,
    "perf/total_num_tokens": 500.0,
    "prompt_length/mean": 12.0,
    "num_turns/mean": 1.5,
    "response_length/in_group_std": 3.0,
    "response_length/digits/le_8": 6.0,
    "response_length/digits/le_24": 2.0,
    "buffer/num_groups": 4.0,
    "buffer/lag_mean": 1.5,
    "buffer/num_left": 0.0,
    "critic/rewards/mean": 0.5,
    "training/off_policy/lag_0/ess": 1.0,
    "training/off_policy/lag_2/ess": 0.875,
}
SPEEDS: Mapping[str, Any] = {
    "environment": {"512": [30, 12.0], "1024": [10, 9.0]},
    "served": {"8": [50, 1000, 30.0, 350.0], "16": [20, 400, 20.0, 280.0]},
    "waited": {"512": [9, 4.5]},
    "servers": {"activations": 11.0, "stage_s": 1.1, "pause_s": 7.0, "longest_pause_s": 5.0},
}


def write_run(
    directory: Path,
    *,
    steps: int = 20,
    limit: int = 2,
    mode: str = "separate_async",
    speeds: Mapping[str, Any] | None = SPEEDS,
    line: Mapping[str, float] | None = None,
    held_out: float | None = 0.5,
) -> Path:
    """A run of equal steps; every fifth writes a checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(CONFIG.format(directory=directory, mode=mode, limit=limit))
    rows = []
    for step in range(1, steps + 1):
        checkpoint = {"timing_s/wait/trainer writes a checkpoint": 0.1} if step % 5 == 0 else {}
        rows.append({"step": step, "branch": 1, "time_s": 2.0 * step, **STEP, **checkpoint, **(line or {})})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if speeds is not None:
        (directory / "rollout").mkdir(exist_ok=True)
        (directory / "rollout" / "facts.json").write_text(json.dumps({"waits_s": {}, "ended": {}, "speeds": speeds}))
    summary = {"heldout_after": held_out, "stale_groups": 20, "groups": {"consumed": 4 * steps}}
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "outcome.json").write_text(json.dumps({"reason": "finished"}))
    return directory
