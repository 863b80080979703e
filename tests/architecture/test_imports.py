"""Importing the light packages stays light. The import rules are among the checks: see test_checks."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "ray", "transformers", "redis", "sglang", "wandb", "numba")


@pytest.mark.parametrize("module", ["asyncrl.cli", "asyncrl.config", "asyncrl.load_config", "buffer", "weightsync"])
def test_importing_a_light_module_brings_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "module",
    [
        "asyncrl.rollout.worker",
        "asyncrl.inference.host",
        "asyncrl.run.serve_rollout",
        "weightsync.receiver",
        "buffer.replay_buffer",
    ],
)
def test_the_rollout_side_runs_without_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules or 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
