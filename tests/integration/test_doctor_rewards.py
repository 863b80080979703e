"""The doctor loads reward functions in a process, as a worker does, and looks for the keys of judges."""

from pathlib import Path

import pytest

from asyncrl.doctor.rewards import check_rewards
from asyncrl.load_config import load

JUDGE = 'rollout.reward.judges=[{name: style, url: "http://x/v1", model: m, api_key_env: NO_SUCH_KEY}]'


def test_functions_that_load_are_named_and_broken_ones_are_said(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info): return 1"
    )
    (tmp_path / "bad.py").write_text("raise RuntimeError('no licence')")
    (good,) = check_rewards(load(None, [f"rollout.reward.file={tmp_path / 'good.py'}"]).config)
    assert (good.ok, good.detail) == (True, "file")
    own = f"rollout.reward.functions=[{{name: own, file: {tmp_path / 'bad.py'}}}]"
    (bad,) = check_rewards(load(None, [own]).config)
    assert not bad.ok
    assert "cannot be loaded: RuntimeError: no licence (bad.py:1" in bad.detail


def test_a_key_that_is_not_there_is_said_and_the_table_alone_needs_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = load(None, [JUDGE]).config
    (missing,) = check_rewards(config)
    assert not missing.ok
    assert "environment variable NO_SUCH_KEY" in missing.detail
    monkeypatch.setenv("NO_SUCH_KEY", "a secret")
    (found,) = check_rewards(config)
    assert (found.ok, found.detail) == (True, "style")
    assert list(check_rewards(load(None, []).config)) == []
