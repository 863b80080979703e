"""The example of buffer/README.md, as it stands there: it runs, and run again it goes on from its checkpoint."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from buffer import Ledger

ROOT = Path(__file__).resolve().parents[2]


def example(directory: Path) -> Path:
    (block,) = [
        text
        for text in re.findall(r"^```python\n(.*?)^```$", (ROOT / "buffer/README.md").read_text(), re.M | re.S)
        if "def work(" in text
    ]
    path = directory / "example.py"
    path.write_text(block)
    return path


def run(script: Path, directory: Path, steps: int) -> str:
    done = subprocess.run(
        [sys.executable, str(script), str(directory), str(steps)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_example_trains_resumes_and_balances(tmp_path: Path) -> None:
    script, directory = example(tmp_path), tmp_path / "run"
    first = run(script, directory, 2)
    assert "step 2: mean reward" in first
    assert "the accounts balance: True" in first
    second = run(script, directory, 5)
    assert re.findall(r"^step (\d+)", second, re.M) == ["3", "4", "5"]
    assert "the accounts balance: True" in second
    assert "'consumed': 20" in second
    saved = Ledger.from_json(json.loads((directory / "checkpoint.json").read_text()))
    assert (saved.branch, saved.number) == (2, 5)
