"""Checkpoint names are views of storage that never moves; loading is all or nothing."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.weights import WeightsMismatch
from tests.support.local_models import FAMILIES, local_model, make_model, save_model

OPTIONS = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"attention_bias": True},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_checkpoint_tensor_has_its_place(family: str, tied: bool) -> None:
    model = make_model(family, tie_word_embeddings=tied, **OPTIONS[family])
    local = local_model(model)
    state = {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    assert local.weights.views.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(local.weights.views[name], tensor)
        assert local.weights.views[name].is_contiguous()


def test_fused_parameters_have_sglangs_names_and_addresses_never_change() -> None:
    local = local_model(make_model("qwen3"))
    before = {name: tensor.data_ptr() for name, tensor in local.named_parameters()}
    assert "model.layers.1.self_attn.qkv_proj.weight" in before
    assert "model.layers.0.mlp.gate_up_proj.weight" in before
    other = make_model("qwen3", seed=1)
    touched = local.load_weights(other.state_dict().items())
    assert {name: tensor.data_ptr() for name, tensor in local.named_parameters()} == before
    assert touched == before.keys()


def test_a_partial_update_names_the_fused_parameters_it_wrote() -> None:
    local = local_model(make_model("qwen2"))
    value = torch.full((32, 64), 2.0)
    assert local.load_weights([("model.layers.0.self_attn.k_proj.weight", value)]) == {
        "model.layers.0.self_attn.qkv_proj.weight"
    }
    fused = dict(local.named_parameters())["model.layers.0.self_attn.qkv_proj.weight"]
    assert torch.equal(fused[64:96], value)


def test_a_tied_head_and_rotary_tables_are_skipped_as_sglang_skips_them() -> None:
    local = local_model(make_model("qwen2"))
    skipped = [("lm_head.weight", torch.zeros(1)), ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(1))]
    assert local.load_weights(skipped) == set()


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [("model.nothing.weight", (3,), "not part of"), ("model.norm.weight", (3,), r"\(3,\), the model's is \(64,\)")],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(name: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(WeightsMismatch, match=said):
        local_model(make_model("qwen2")).load_weights([(name, torch.zeros(shape))])


def test_a_model_directory_is_loaded_in_the_storage_dtype(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3")
    local = LocalModel.from_dir(tmp_path, torch.float32)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(local.weights.views[name], tensor.float())
    assert local.config.eos_ids == {50}


@pytest.mark.parametrize("damage", ["missing", "shape", "unknown", "truncated", "no files"])
def test_a_directory_that_does_not_fit_leaves_the_weights_as_they_were(tmp_path: Path, damage: str) -> None:
    save_model(tmp_path)
    local = LocalModel.from_dir(tmp_path, torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in local.named_parameters()}
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor + 1 for name, tensor in load_file(file).items()}
    if damage == "missing":
        del tensors["model.norm.weight"]
    elif damage == "shape":
        tensors["model.norm.weight"] = torch.zeros(3)
    elif damage == "unknown":
        tensors["model.nothing"] = torch.zeros(3)
    save_file(tensors, file)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "no files":
        file.unlink()
    with pytest.raises(WeightsMismatch):
        local.weights.load_dir(tmp_path)
    assert all(torch.equal(before[name], tensor) for name, tensor in local.named_parameters())


def test_only_llama_answers_for_parameters_by_name_unless_a_loader_puts_an_answer_there() -> None:
    assert not hasattr(local_model(make_model("qwen2")), "get_weights_by_name")
    llama = local_model(make_model("llama"))
    rows = llama.get_weights_by_name("model.norm.weight", 3)
    assert rows == pytest.approx(llama.weights.views["model.norm.weight"][:3].tolist())
    llama.get_weights_by_name = lambda name, truncate_size=100, tp_size=1: [1, 2]
    assert llama.get_weights_by_name("@anything") == [1, 2]
