"""Plans that cannot be followed are refused by name; what can be is split like in tests/integration."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from asyncrl.errors import ConfigError
from asyncrl.trainer import tensor_parallel
from asyncrl.trainer.tensor_parallel import split_products
from tests.support.tiny_moe import write_tiny_moe


class TwoRanks:
    """The part of a mesh that is looked at before anything is split."""

    def size(self):
        return 2


def make_model(**settings):
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": 51, "num_hidden_layers": 1, **shape, **settings}))


@pytest.fixture
def plan(monkeypatch):
    """What would be split, by module."""
    found = {}

    def take(model, mesh, plan):
        found.update({name: type(style).__name__ for name, style in plan.items()})

    monkeypatch.setattr(tensor_parallel, "parallelize_module", take)
    return found


def test_a_vocabulary_that_cannot_be_cut_stays_whole(plan):
    assert split_products(make_model(tie_word_embeddings=False), TwoRanks()) == set()
    assert set(plan) == {
        *(f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"),
        *(f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")),
    }


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_are_cut_alike_and_stay_one_parameter(plan, tied):
    model = make_model(vocab_size=52, tie_word_embeddings=tied)
    assert split_products(model, TwoRanks()) == {model.lm_head}, "its logits stay in parts"
    assert plan["lm_head"] == "Columns"
    assert plan.get("model.embed_tokens") == "Vocabulary" or not tied
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_a_tied_embedding_that_the_plan_leaves_whole_keeps_the_head_whole(plan):
    model = make_model(vocab_size=52, tie_word_embeddings=True)
    model._tp_plan = {name: style for name, style in model.tp_plan.items() if "embed" not in name}
    split_products(model, TwoRanks())
    assert "lm_head" not in plan
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_models_inside_another_module_are_split(plan):
    split_products(nn.ModuleDict({"trunk": make_model().model, "head": nn.Linear(16, 1)}), TwoRanks())
    assert "layers.0.self_attn.q_proj" in plan


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_key_value_heads": 1}, r"LlamaForCausalLM: num_key_value_heads = 1 is no multiple of .*tp = 2"),
        ({"intermediate_size": 25}, r"tp = 2 does not divide the width of model\.layers\.0\.mlp\.\w+_proj"),
    ],
)
def test_what_does_not_divide_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        split_products(make_model(**settings), TwoRanks())


def test_a_style_that_is_not_known_is_refused():
    model = make_model()
    model._tp_plan = {**model.tp_plan, "model.layers.*.mlp": "mla_kv_a_proj"}
    with pytest.raises(ConfigError, match=r"wants model\.layers\.0\.mlp split in the style 'mla_kv_a_proj'; known are"):
        split_products(model, TwoRanks())


def test_a_parameter_that_the_plan_cuts_by_itself_is_refused():
    model = make_model()
    model.model.layers[0].self_attn.register_parameter("sinks", nn.Parameter(torch.zeros(4)))
    model._tp_plan = {**model.tp_plan, "model.layers.*.self_attn.sinks": "colwise"}
    with pytest.raises(ConfigError, match=r"wants model\.layers\.0\.self_attn\.sinks split in the style 'colwise'"):
        split_products(model, TwoRanks())


def test_experts_stay_whole_and_so_does_what_the_plan_cuts_of_them(plan, tmp_path):
    split_products(AutoModelForCausalLM.from_pretrained(write_tiny_moe(tmp_path / "moe")), TwoRanks())
    assert "model.layers.1.self_attn.q_proj" in plan
    assert plan["model.layers.1.self_attn.q_norm"] == "EachHead"
    assert not any("experts" in name or "gate" in name for name in plan if ".layers.1.mlp" in name)
    assert plan["model.layers.0.mlp.down_proj"] == "Rows"  # the dense layer


@pytest.mark.parametrize("left", [{}, {"model.embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}])
def test_a_model_without_a_plan_for_its_layers_is_refused(left):
    model = make_model()
    model._tp_plan = left
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no tensor-parallel plan for its layers"):
        split_products(model, TwoRanks())
