"""The prompts of a run are read and can be scored before a server is started."""

import json
from pathlib import Path

import pytest

from asyncrl.errors import RewardError
from asyncrl.load_config import load
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.run.identity import open_prompts
from tests.support.chat_models import make_model_dir


def test_a_data_source_without_a_reward_is_refused_with_the_known_ones_and_the_key(tmp_path: Path) -> None:
    """A source that is a local path is no rule of the table, and no reward of 0 (B102)."""
    data, user_file = tmp_path / "a.jsonl", tmp_path / "reward.py"
    data.write_text(json.dumps({"prompt": "q", "ground_truth": "1", "data_source": "/data/gsm8k"}) + "\n")
    user_file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1.0\n")
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path / "model", "chatml"))
    files = f"data.train_files=[{data}]"
    with pytest.raises(RewardError, match=r"'/data/gsm8k' \(known: sort_digits.*gsm8k.*rollout\.reward\.file"):
        open_prompts(load(None, [files]).config, chat)
    train, _ = open_prompts(load(None, [files, f"rollout.reward.file={user_file}"]).config, chat)
    assert len(train) == 1
