"""`asyncrl checkpoint list|verify|export` and `asyncrl export`: what there is, whether it is sound, any of them as a
model directory, whatever number of ranks wrote it."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl import cli
from asyncrl.config import CheckpointConfig
from asyncrl.errors import CheckpointError, ConfigError
from asyncrl.load_config import load
from asyncrl.run.saved import best_checkpoint
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.parallel import OneRank
from tests.support.commands import CONFIG
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train, write_tiny_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run directory with checkpoints of steps 1 to 3, the second one scored best, and the weights of each."""
    root = tmp_path_factory.mktemp("run")
    model_dir = write_tiny_model(root / "model")
    policy = make_policy(model_dir)
    store = Checkpoints(root / "run" / "checkpoints", CheckpointConfig(keep_last=9))
    weights = {}
    for step, score in ((1, 0.25), (2, 0.75), (3, None)):
        train(policy, make_batch(policy, make_groups(model_dir, 2, 3, seed=step)))
        name = CheckpointName(1, step, step)
        store.save(name, policy, {"step": step, "optimizer_steps": step}, OneRank())
        store.score(name, score)
        weights[step] = {key: value.detach().bfloat16() for key, value in policy.named_parameters().items()}
    return root, weights


@pytest.fixture
def run_dir(made, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(made[0] / "run", tmp_path / "run")


def asyncrl(made, run_dir, *words):
    command, *rest = words
    keys = [f"run.dir={run_dir}", f"model.path={made[0] / 'model'}"]
    action = [rest.pop(0)] if command == "checkpoint" else []
    return cli.main([command, *action, str(CONFIG), *keys, *rest])


def printed(capsys):
    return json.loads(capsys.readouterr().out)


def test_list_shows_each_with_its_score_size_age_and_ranks(made, run_dir, capsys):
    assert asyncrl(made, run_dir, "checkpoint", "list", "--json") == 0
    rows = printed(capsys)
    assert [(row["step"], row["version"], row["score"]) for row in rows] == [
        ("3", "1.3", None),
        ("2", "1.2", 0.75),
        ("1", "1.1", 0.25),
    ]
    for row in rows:
        assert row["world"] == 1
        there = run_dir / "checkpoints" / f"1.{row['step']}-step{row['step']}"
        assert row["bytes"] == sum((there / name).stat().st_size for name in ("rank-00000.safetensors", "state.json"))
        assert 0 <= row["age_s"] < 3600
    assert asyncrl(made, run_dir, "checkpoint", "list") == 0
    assert "step 2  version 1.2" in capsys.readouterr().out


def test_verify_names_what_is_damaged_and_says_so_by_its_exit_code(made, run_dir, capsys):
    assert asyncrl(made, run_dir, "checkpoint", "verify", "--json") == 0
    assert {row["state"] for row in printed(capsys)} == {"complete"}
    path = run_dir / "checkpoints" / "1.2-step2" / "rank-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert asyncrl(made, run_dir, "checkpoint", "list", "--json") == 0  # sizes alone
    printed(capsys)
    assert asyncrl(made, run_dir, "checkpoint", "verify", "--json") == CheckpointError.exit_code
    assert [row["state"].split(":")[0] for row in printed(capsys)] == ["complete", "damaged", "complete"]


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["checkpoint", "export"], 3),
        (["checkpoint", "export", "--checkpoint", "1"], 1),
        (["export", "--checkpoint", "1.2-step2"], 2),
        (["export", "--best"], 2),
    ],
)
def test_any_checkpoint_is_exported(made, run_dir, tmp_path, capsys, words, step):
    output = tmp_path / "model"
    assert asyncrl(made, run_dir, *words, "--output", str(output), "--json") == 0
    told = printed(capsys)
    assert (told["output"], told["step"], told["version"]) == (str(output), step, f"1.{step}")
    found = AutoModelForCausalLM.from_pretrained(output, dtype=torch.bfloat16).state_dict()
    for name, value in made[1][step].items():
        assert torch.equal(found[name], value), name


def test_what_cannot_be_exported_is_said(made, run_dir, tmp_path, capsys):
    assert asyncrl(made, run_dir, "export") == ConfigError.exit_code
    assert "--output" in capsys.readouterr().err
    output = str(tmp_path / "model")
    assert asyncrl(made, run_dir, "export", "--output", output, "--checkpoint", "7") == CheckpointError.exit_code
    assert "no checkpoint '7'; there are: 1.1-step1" in capsys.readouterr().err
    for score in (run_dir / "checkpoints").glob("*/score.json"):
        score.unlink()
    assert asyncrl(made, run_dir, "export", "--output", output, "--best") == CheckpointError.exit_code
    assert "trainer.checkpoint.keep_best" in capsys.readouterr().err


def test_the_summary_names_the_best_sound_one(made, run_dir):
    config = load(CONFIG, [f"run.dir={run_dir}"]).config
    assert best_checkpoint(config) == {"name": "1.2-step2", "step": 2, "score": 0.75}
    (run_dir / "checkpoints" / "1.2-step2" / "state.json").unlink()
    assert best_checkpoint(config) == {"name": "1.1-step1", "step": 1, "score": 0.25}
    shutil.rmtree(run_dir / "checkpoints")
    assert best_checkpoint(config) is None
