"""The benchmark of weight sync runs and has the figures that people look for; what they are is not judged here."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

KEYS = {
    "frames": (
        *("bytes_per_changed_3pct", "over_floor_3pct", "frame_over_memcpy_3pct", "vs_verl_encode_3pct"),
        *("vs_verl_apply_3pct", "two_encoders_over_one_3pct", "of_dense_3pct"),
    ),
    "loader": ("vs_verl_loader_3pct", "vs_verl_apply_torch_3pct", "loader_ms_3pct"),
    "links": ("vs_dense_10gbps", "vs_dense_unpaced", "frames_s_10gbps"),
    "pause": (
        "reload_over_pause_1pct",
        "pause_ms_1pct",
        "pause_http_ms_1pct",
        "pause_p99_ms_1pct",
        "pause_of_sync_1pct",
    ),
    "blocked": ("publish_blocks_step_share", "publish_blocks_ms", "peak_extra_bytes_per_param"),
    "model": ("model_7b_10gbps_s", "model_72b_400gbps_s", "model_72b_10gbps_dense_s"),
}


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    command = [str(ROOT / "scripts" / "bench"), "weightsync", "--quick", "--model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "weightsync"
    return dict(last["figures"])


@pytest.mark.parametrize("case", KEYS)
def test_a_case_gives_its_figures(figures: dict[str, float], case: str) -> None:
    assert {name for name in KEYS[case] if not figures.get(name, 0) > 0} == set()


def test_a_version_takes_few_bytes_whatever_the_machine_does(figures: dict[str, float]) -> None:
    """Sizes do not depend on load: a tiny model's small tensors cost some headers more than the large one's."""
    assert 0.9 < figures["bytes_per_changed_3pct"] < 1.3
    assert figures["over_floor_3pct"] < 1.15
