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


def test_an_evaluation_may_take_the_first_held_out_prompts_alone(tmp_path: Path) -> None:
    """eval.max_prompts; what is trained on is not touched, and asking for more than there are is no error."""
    data = tmp_path / "a.jsonl"
    rows = [{"prompt": f"q{i}", "ground_truth": "1", "data_source": "sort_digits"} for i in range(5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path / "model", "chatml"))
    files = [f"data.train_files=[{data}]", f"data.val_files=[{data}]"]
    for most, left in ((None, 5), (2, 2), (9, 5)):
        train, held_out = open_prompts(load(None, [*files, f"eval.max_prompts={most or 'null'}"]).config, chat)
        assert held_out is not None
        assert (len(train), len(held_out)) == (5, left)
        assert held_out[left - 1].messages[0]["content"] == f"q{left - 1}"
