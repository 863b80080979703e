"""The prompts of a run are read and can be scored before a server is started."""

import json
from pathlib import Path

import pytest

from asyncrl.data import Dataset
from asyncrl.errors import ConfigError, RewardError
from asyncrl.load_config import load
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.run.identity import open_prompts, prompt_order
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


def test_sources_with_weights_are_drawn_by_them_and_rows_that_were_refused_do_not_count(tmp_path: Path) -> None:
    for name, num_rows in (("a", 6), ("b", 4), ("c", 3)):
        rows = [{"prompt": f"{name}{i}", "ground_truth": "1", "data_source": "sort_digits"} for i in range(num_rows)]
        rows.insert(1, {"prompt": " ", "ground_truth": "1", "data_source": "sort_digits"})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path / "model", "chatml"))

    def opened(*weights: float, more: tuple[str, ...] = ()) -> tuple[Dataset, list[str]]:
        files = ([tmp_path / "a.jsonl"], [tmp_path / "b.jsonl", tmp_path / "c.jsonl"])
        pairs = zip(files, weights, strict=True)
        sources = [{"files": [str(path) for path in some], "weight": weight} for some, weight in pairs]
        config = load(None, [f"data.sources={json.dumps(sources)}", *more]).config
        train, _ = open_prompts(config, chat)
        order = prompt_order(config, train)
        return train, [str(train[order.index(n)].messages[0]["content"]) for n in range(84)]

    train, prompts = opened(3, 1)
    assert len(train) == 13
    assert all(sum(prompt[0] == "a" for prompt in prompts[i : i + 4]) == 3 for i in range(0, 84, 4))
    second = [prompt for prompt in prompts if prompt[0] != "a"]
    assert sorted(second[:7]) == sorted(second[7:14]) == ["b0", "b1", "b2", "b3", "c0", "c1", "c2"]
    assert opened(0.75, 0.25)[1] == prompts, "the ratio counts"
    fingerprints = {
        opened(3, 1)[0].fingerprint,
        opened(1, 1)[0].fingerprint,
        opened(3, 1, more=("data.curriculum.policy=pass_rate",))[0].fingerprint,
    }
    assert len(fingerprints) == 3, "a run that draws otherwise is another run"
    both = [f"data.train_files=[{tmp_path / 'a.jsonl'}]", f"data.sources=[{{files: [{tmp_path / 'b.jsonl'}]}}]"]
    with pytest.raises(ConfigError, match=r"data\.train_files and data\.sources are both set"):
        load(None, both)
