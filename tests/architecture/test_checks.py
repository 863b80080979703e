"""Format, lint, types and import rules hold: a test, so that they take a core beside the others and not before them."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
def test_format_lint_types_and_import_rules_hold() -> None:
    done = subprocess.run(["./scripts/check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
