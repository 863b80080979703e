"""The peers on the same groups, in turns with ours: TransferQueue's sampler API and Reverb, each in its environment."""

import json
import os
import statistics
import subprocess
import sys

from scripts.benches.buffer_cases.flow import measure
from scripts.benches.peer_environments import SCRIPTS, environment

RUN_S = 1200

PEERS = {"transferqueue": 400, "reverb": 1920}
"""Groups a repetition: TransferQueue takes ten times as long."""


def cpu_ms(peer: str, num_producers: int, count: int) -> dict[str, float]:
    """CPU ms a group of one repetition, by part."""
    # Spinning threads would be counted as work.
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [str(environment(peer)), str(SCRIPTS / f"run_{peer}.py"), str(num_producers), str(count)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{peer} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(count: int, repeats: int) -> dict[str, float]:
    """Medians, and the medians of each turn's ratio to ours."""
    figures: dict[str, float] = {}
    for num_producers in (1, 4):
        totals: dict[str, list[float]] = {name: [] for name in ("ours", *PEERS)}
        for _ in range(repeats):
            totals["ours"].append(measure("ours", num_producers, count)[0].total)
            for peer, groups in PEERS.items():
                parts = cpu_ms(peer, num_producers, min(groups, count))
                totals[peer].append(sum(parts.values()))
                said = ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items())
                print(f"peers {num_producers}p {peer}: {said}; ours {totals['ours'][-1]:.3f} ms", file=sys.stderr)
        for name, found in totals.items():
            figures[f"peers_{name}_{num_producers}p_ms"] = round(statistics.median(found), 3)
        figures[f"vs_transferqueue_{num_producers}p"] = _ratio(totals["transferqueue"], totals["ours"])
        figures[f"over_reverb_{num_producers}p"] = _ratio(totals["ours"], totals["reverb"])
    return figures


def _ratio(above: list[float], below: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(above, below, strict=True)), 3)
