"""The benchmark of the buffer runs and has the figures that people look for; what they are is not judged here."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

KEYS = {
    "flow": (
        *("over_raw_redis_1p", "over_raw_redis_4p", "over_raw_redis_8_blobs_1p", "ours_1p_server_ms"),
        *("ours_1p_producer_ms", "ours_1p_consumer_ms", "raw_4p_total_ms", "capacity_gpus_per_redis"),
    ),
    "latency": ("latency_over_raw_p50", "latency_ours_p99_ms", "latency_raw_p50_ms"),
    "resident": ("cost_100k_over_1k", "cost_reserve_many_over_few", "cost_checkpoint_us_many"),
    "sizes": ("size_1mb_redis_put_ms_per_mb", "size_1mb_file_fetch_memory", "size_1mb_file_put_over_raw"),
    "memory": ("memory_rss_over_accounted_max", "memory_used_over_accounted_mean", "memory_rss_without_tail_max"),
}


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    command = [str(ROOT / "scripts" / "bench"), "buffer", "--quick", "--only", ",".join(KEYS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "buffer"
    return dict(last["figures"])


@pytest.mark.parametrize("case", KEYS)
def test_a_case_gives_its_figures(figures: dict[str, float], case: str) -> None:
    assert {name for name in KEYS[case] if not figures.get(name, 0) > 0} == set()
