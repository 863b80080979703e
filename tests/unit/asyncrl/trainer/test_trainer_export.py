"""Exports: directories that transformers loads with exactly the weights that servers hold."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config import CheckpointConfig, Config, ModelConfig
from asyncrl.errors import CheckpointError, ExportError
from asyncrl.trainer import export
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.export import export_checkpoint, export_policy
from asyncrl.trainer.parallel import OneRank
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train
from weightsync.digest import digest_of_model_dir
from weightsync.manifest import Manifest


@pytest.fixture(scope="module")
def policy(model_dir):
    policy = make_policy(model_dir)
    train(policy, make_batch(policy, make_groups(model_dir, 2, 4)))
    return policy


@pytest.fixture(scope="module")
def config(model_dir):
    return Config(model=ModelConfig(path=model_dir))


def check_loads(directory, policy):
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.dtype == torch.bfloat16
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, policy.named_parameters()[name].to(torch.bfloat16)), name
    assert AutoTokenizer.from_pretrained(directory).encode("sort 1", add_special_tokens=False)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 1


def test_the_live_policy_exports_to_what_transformers_loads(policy, config, tmp_path):
    check_loads(export_policy(policy, config, tmp_path / "export", "1.1", OneRank()), policy)


def test_a_checkpoint_exports_to_the_same_bytes_as_the_live_policy(policy, config, tmp_path):
    state = {"optimizer_steps": 1}
    Checkpoints(tmp_path / "checkpoints", CheckpointConfig()).save(CheckpointName(1, 1, 1), policy, state, OneRank())
    export_checkpoint(tmp_path / "checkpoints", config, tmp_path / "one")
    export_policy(policy, config, tmp_path / "other", "1.1", OneRank())
    check_loads(tmp_path / "one", policy)
    digests = []
    for name in ("one", "other"):
        manifest = Manifest.from_model_dir(tmp_path / name, "bfloat16")
        digests.append(digest_of_model_dir(tmp_path / name, manifest))
    assert digests[0] == digests[1]


def test_an_untouched_model_exports_to_its_own_digest(model_dir, config, tmp_path):
    export_policy(make_policy(model_dir), config, tmp_path / "export", "1.0", OneRank())
    manifest = Manifest.from_model_dir(model_dir, "bfloat16")
    assert Manifest.from_model_dir(tmp_path / "export", "bfloat16") == manifest
    assert digest_of_model_dir(tmp_path / "export", manifest) == digest_of_model_dir(model_dir, manifest)


def test_a_model_that_mixes_dtypes_and_has_more_than_is_trained_exports_as_it_began(model_dir, tmp_path):
    """A norm in float32 beside bfloat16, and a head that the trainer never builds."""
    mixed = shutil.copytree(model_dir, tmp_path / "mixed")
    weights = load_file(mixed / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].float() + 1e-5  # no bfloat16
    weights["mtp.bias"] = torch.linspace(-1, 1, 7)
    save_file(weights, mixed / "model.safetensors", {"format": "pt"})
    policy = make_policy(mixed)
    directory = export_policy(policy, Config(model=ModelConfig(path=mixed)), tmp_path / "export", "1.0", OneRank())
    manifest = Manifest.from_model_dir(mixed, "bfloat16")
    assert Manifest.from_model_dir(directory, "bfloat16") == manifest
    assert digest_of_model_dir(directory, manifest) == digest_of_model_dir(mixed, manifest)
    assert manifest.dtypes["model.norm.weight"] == manifest.dtypes["mtp.bias"] == "float32"


def test_large_models_are_cut_into_files_with_an_index(policy, config, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 2000)
    directory = export_policy(policy, config, tmp_path / "export", "1.1", OneRank())
    assert len(list(directory.glob("model-*-of-*.safetensors"))) > 1
    check_loads(directory, policy)


def test_an_earlier_export_is_replaced_and_other_directories_are_not(policy, config, tmp_path):
    target = tmp_path / "export"
    export_policy(policy, config, target, "1.1", OneRank())
    (target / "old").write_text("")
    export_policy(policy, config, target, "1.2", OneRank())
    assert not (target / "old").exists()
    assert json.loads((target / "asyncrl.json").read_text()) == {"version": "1.2"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(ExportError, match="was not exported by asyncrl"):
        export_policy(policy, config, tmp_path / "mine", "1.2", OneRank())


def test_an_export_from_a_checkpoint_replaces_nothing(policy, config, tmp_path):
    Checkpoints(tmp_path / "c", CheckpointConfig()).save(
        CheckpointName(1, 1, 1), policy, {"optimizer_steps": 1}, OneRank()
    )
    (tmp_path / "there").mkdir()
    with pytest.raises(ExportError, match="does not replace what it finds"):
        export_checkpoint(tmp_path / "c", config, tmp_path / "there")


def test_without_a_checkpoint_there_is_nothing_to_export(config, tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint to export"):
        export_checkpoint(tmp_path / "none", config, tmp_path / "out")


def test_a_target_that_cannot_be_made_is_an_export_error(policy, config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="could not be exported"):
        export_policy(policy, config, tmp_path / "file" / "export", "1.1", OneRank())
