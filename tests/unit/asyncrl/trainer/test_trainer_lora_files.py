"""Adapters on disk: checkpoints hold them alone, exports are peft's and merged ones, and a run may go on from one."""

import json
from functools import partial

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config import CheckpointConfig, Config, LoraConfig, ModelConfig
from asyncrl.errors import CheckpointError, ConfigError
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.export import export_checkpoint, export_policy
from asyncrl.trainer.parallel import OneRank
from buffer.versions import pack
from tests.support.plain_logprobs import plain_logprobs
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.transport import open_transport

make_adapted = partial(make_policy, lora_rank=4, lora_alpha=6.0, algorithm_kl_coef=0.1)


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 4, 4, seed=1)


@pytest.fixture(scope="module")
def policy(model_dir, groups):
    """After two steps."""
    policy = make_adapted(model_dir)
    for _ in range(2):
        train(policy, make_batch(policy, groups))
    return policy


@pytest.fixture(scope="module")
def saved(policy, tmp_path_factory):
    """A checkpoint of it."""
    checkpoints = Checkpoints(tmp_path_factory.mktemp("checkpoints"), CheckpointConfig())
    checkpoints.save(CheckpointName(1, 2, 2), policy, {"optimizer_steps": policy.optimizer_steps}, OneRank())
    return checkpoints


@pytest.fixture(scope="module")
def exported(policy, model_dir, tmp_path_factory):
    """An export of it."""
    config = Config(model=ModelConfig(path=model_dir))
    return export_policy(policy, config, tmp_path_factory.mktemp("export") / "export", "1.2", OneRank())


def tensors_in(checkpoints):
    path = checkpoints.newest().path
    return {name for file in path.glob("rank-*.safetensors") for name in load_file(file)}


def test_a_checkpoint_holds_the_adapter_and_its_moments_alone_and_says_what_it_is(policy, saved):
    names = {name for name in tensors_in(saved) if not name.startswith("random/")}
    kinds = ("weights", "exp_avg", "exp_avg_sq")
    assert names == {f"{kind}/{name}" for name in policy.named_parameters() for kind in kinds}
    assert saved.newest().state["lora"] == {
        "rank": 4,
        "alpha": 6.0,
        "target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
    }


def test_a_resume_goes_on_bit_for_bit(model_dir, groups, saved):
    straight = make_adapted(model_dir)
    for _ in range(4):
        train(straight, make_batch(straight, groups))
    resumed = make_adapted(model_dir, lora_seed=9)
    saved.load(saved.newest(), resumed)
    for _ in range(2):
        train(resumed, make_batch(resumed, groups))
    for name, value in straight.named_parameters().items():
        assert torch.equal(value, resumed.named_parameters()[name]), name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lora_rank": 8}, r"lora\.rank = 4, this run has 8"),
        ({"lora_alpha": 16.0}, r"lora\.alpha = 6\.0, this run has 16\.0"),
        (
            {"lora_target_modules": ("q_proj", "v_proj")},
            r"target_modules = down_proj, .* this run has q_proj, v_proj",
        ),
        ({"lora_rank": 0}, r"an adapter of rank 4, and lora\.rank = 0 trains every weight"),
    ],
)
def test_another_adapter_or_none_does_not_go_on_from_it(model_dir, saved, settings, words):
    other = make_adapted(model_dir, **settings)
    before = {name: value.clone() for name, value in other.named_parameters().items()}
    with pytest.raises(CheckpointError, match=words):
        saved.load(saved.newest(), other)
    assert all(torch.equal(value, before[name]) for name, value in other.named_parameters().items())


def test_an_adapter_does_not_go_on_from_whole_weights(model_dir, tmp_path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    checkpoints.save(CheckpointName(1, 1, 1), make_policy(model_dir), {"optimizer_steps": 0}, OneRank())
    with pytest.raises(CheckpointError, match=r"holds every weight, and lora\.rank = 4 trains an adapter"):
        checkpoints.load(checkpoints.newest(), make_adapted(model_dir))


def test_peft_reads_the_exported_adapter_and_says_what_the_policy_says(model_dir, policy, exported, groups):
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    batch = make_batch(policy, groups)
    plain = plain_logprobs(base, batch.rows[0])
    picked = plain_logprobs(PeftModel.from_pretrained(base, exported / "adapter"), batch.rows[0])
    torch.testing.assert_close(policy.logprobs(batch)[: len(picked)], picked, atol=1e-5, rtol=1e-4)
    assert float((picked - plain).abs().max()) > 1e-2
    for name, value in load_file(exported / "adapter" / "adapter_model.safetensors").items():
        assert torch.equal(value, policy.named_parameters()[name.removeprefix("base_model.model.")])


def test_the_merged_export_is_what_servers_hold_bit_for_bit(model_dir, policy, exported, tmp_path):
    config = WeightsyncConfig(directory=str(tmp_path / "parts"))
    manifest = Manifest.from_model_dir(model_dir, "bfloat16")
    log, transport = open_log(str(tmp_path / "log"), "toy"), open_transport(config, "", "toy")
    publisher = WeightPublisher(manifest, policy.shards, log, transport, config)
    publisher.publish_origin(model_dir)
    publisher.claim(1)
    report = publisher.publish(pack(1, 2))
    assert digest_of_model_dir(exported, manifest) == report.digest
    assert 0 < report.num_changed < report.num_words
    assert publisher.publish(pack(1, 3), publisher.capture()).num_changed == 0
    assert AutoTokenizer.from_pretrained(exported).encode("sort 1", add_special_tokens=False)


def test_a_checkpoint_exports_to_the_same_as_the_live_policy(model_dir, saved, exported, tmp_path):
    export_checkpoint(saved.newest().path.parent, Config(model=ModelConfig(path=model_dir)), tmp_path / "export")
    for name in ("model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"):
        assert (tmp_path / "export" / name).read_bytes() == (exported / name).read_bytes(), name


def test_merged_weights_are_left_out_by_the_key(model_dir, policy, tmp_path):
    config = Config(model=ModelConfig(path=model_dir), lora=LoraConfig(rank=4, export_merged=False))
    directory = export_policy(policy, config, tmp_path / "export", "1.2", OneRank())
    assert [path.relative_to(directory).as_posix() for path in directory.rglob("*.safetensors")] == [
        "adapter/adapter_model.safetensors"
    ]


def test_a_run_goes_on_from_an_adapter_of_peft(model_dir, policy, exported, groups, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    PeftModel.from_pretrained(base, exported / "adapter", is_trainable=True).save_pretrained(tmp_path / "again")
    went_on, batch = make_adapted(model_dir, lora_path=tmp_path / "again"), make_batch(policy, groups)
    assert torch.equal(went_on.logprobs(batch), policy.logprobs(batch))
    assert torch.equal(went_on.reference_logprobs(batch), make_policy(model_dir).logprobs(batch))


def changed(exported, directory, **keys):
    """A copy of the exported adapter with other keys in its configuration."""
    directory.mkdir()
    config = json.loads((exported / "adapter" / "adapter_config.json").read_text())
    (directory / "adapter_config.json").write_text(json.dumps(config | keys))
    save_file(load_file(exported / "adapter" / "adapter_model.safetensors"), directory / "adapter_model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("keys", "settings", "words"),
    [
        ({"r": 8}, {}, r"an adapter with rank 8, and lora\.rank = 4"),
        ({"lora_alpha": 16}, {}, r"an adapter with alpha 16, and lora\.alpha = 6\.0"),
        ({"use_dora": True}, {}, "was made with use_dora = True"),
        ({"rank_pattern": {"q_proj": 2}}, {}, "was made with rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, {}, "was made with modules_to_save"),
        ({}, {"lora_target_modules": ("q_proj",)}, "do not have the same layers: .*down_proj.* only in the directory"),
    ],
)
def test_an_adapter_of_another_form_is_refused_by_name(model_dir, exported, tmp_path, keys, settings, words):
    directory = changed(exported, tmp_path / "other", **keys)
    with pytest.raises(ConfigError, match=words):
        make_adapted(model_dir, lora_path=directory, **settings)


def test_a_directory_without_an_adapter_is_refused(model_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"lora\.path = .* cannot be read as an adapter in peft's form"):
        make_adapted(model_dir, lora_path=tmp_path)
