"""Tensors of a model directory as parts of the module's parameters: what transformers would save, bit for bit."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.mixtral import MixtralConfig, MixtralForCausalLM

from asyncrl.errors import ConfigError
from asyncrl.trainer.stored import parts_of, stored_tensors, stored_tensors_of, whole_tensors
from tests.support.tiny_policy import write_tiny_model
from weightsync.manifest import Manifest
from weightsync.shard import shards_of

SHAPE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 4}
MODELS = {
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SHAPE,
            num_key_value_heads=2,
            intermediate_size=12,
            moe_intermediate_size=6,
            num_experts=5,
            num_experts_per_tok=2,
            mlp_only_layers=[0],
        )
    ),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**SHAPE, num_key_value_heads=2, intermediate_size=6, num_local_experts=3)
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def moe(request, tmp_path_factory):
    """A model with experts, read from a directory that transformers wrote, and the tensors there."""
    directory = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    MODELS[request.param]().save_pretrained(directory)
    return directory, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def test_parts_are_what_transformers_saved(moe):
    directory, model = moe
    saved, named = load_file(directory / "model.safetensors"), dict(model.named_parameters())
    assert saved.keys() != named.keys()
    found = dict(whole_tensors(stored_tensors(model, named), named.items()))
    assert found.keys() == saved.keys()
    for name, tensor in saved.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


def test_the_directory_alone_says_the_same(moe):
    directory, model = moe
    assert stored_tensors_of(directory) == stored_tensors(model, dict(model.named_parameters()))


def test_shards_have_the_names_and_words_of_the_directory(moe):
    directory, model = moe
    saved, named = load_file(directory / "model.safetensors"), dict(model.named_parameters())
    shards = shards_of(parts_of(stored_tensors(model, named), named), "float32")
    assert {spec.name for spec in Manifest.from_model_dir(directory).tensors} == {shard.name for shard in shards}
    for shard in shards:
        assert torch.equal(shard.tensor.flatten(), saved[shard.name].flatten())
        assert [(segment.start, segment.words) for segment in shard.segments] == [(0, shard.tensor.numel())]
    with torch.no_grad():
        next(model.parameters()).add_(1)  # nothing was copied
    name = next(iter(named))
    assert torch.equal(next(shard for shard in shards if shard.name == name).tensor, named[name])


def test_a_model_without_experts_is_one_to_one(tmp_path):
    directory = write_tiny_model(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(directory)
    stored = stored_tensors(model, dict(model.named_parameters()))
    assert all(tensor.name == tensor.parameter and tensor.box is None for tensor in stored)
    assert {tensor.name for tensor in stored} == set(dict(model.named_parameters()))


def test_a_tensor_that_is_computed_on_saving_is_refused(monkeypatch, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(write_tiny_model(tmp_path / "model"))

    def computed(module, state):
        return {name: tensor.t() if tensor.dim() == 2 else tensor + 1 for name, tensor in state.items()}

    monkeypatch.setattr("asyncrl.trainer.stored.revert_weight_conversion", computed)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM: transformers computes model\.embed_tokens\.weight"):
        stored_tensors(model, dict(model.named_parameters()))
