"""Which models read packed rows: those that do give what they give alone, and the others are padded with a reason."""

from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from asyncrl.errors import ConfigError
from asyncrl.trainer.attention import ATTENTION
from asyncrl.trainer.documents import Documents
from asyncrl.trainer.packable import choose_packing

CPU = torch.device("cpu")
LENGTHS = (9, 6, 6, 2)
SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WINDOW = {"sliding_window": 3, "use_sliding_window": True}
PACKED = {
    "llama": {},
    "qwen2": {**WINDOW, "max_window_layers": 1},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {**EXPERTS, "head_dim": 8},
    "mistral": WINDOW,
    "phi3": WINDOW,
    "olmo2": {},
    "gemma3_text": {**WINDOW, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
}
PADDED = {
    "gemma2": ({"head_dim": 8}, "Gemma2Attention calls its attention with softcap"),
    "gpt_oss": ({"head_dim": 8, "num_local_experts": 4}, "GptOssAttention calls its attention with s_aux"),
    "qwen3_next": ({**EXPERTS, "head_dim": 8}, "linear_attention"),
    "mamba": ({"state_size": 4}, "linear_attention"),
    "bloom": ({}, "cannot be replaced"),
    "bert": ({}, "is_causal = False"),
    "nemotron": ({}, "no documents"),
}


def make(name: str, settings: dict[str, object]) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**{**SMALL, **settings}), dtype=torch.float32)
    with torch.no_grad():  # lively enough that attention matters
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_have_the_logits_that_they_have_alone(name):
    model = make(name, PACKED[name])
    documents = [torch.randint(1, 32, (1, length)) for length in LENGTHS]
    with torch.no_grad():
        alone = torch.cat([model(input_ids=ids, use_cache=False).logits for ids in documents], dim=1)
        assert choose_packing(model, None, key="actor.packing", meshes=None)
        packed = model(
            input_ids=torch.cat(documents, dim=1),
            position_ids=torch.cat([torch.arange(length) for length in LENGTHS])[None],
            documents=Documents.of(LENGTHS, CPU),
            use_cache=False,
        ).logits
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5 * float(alone.abs().max()))


@pytest.mark.parametrize("name", PADDED)
def test_other_models_are_padded_and_say_why(name, caplog):
    settings, reason = PADDED[name]
    model = make(name, settings).train()
    before, kind = model.config._attn_implementation, type(model).__name__
    assert not choose_packing(model, None, key="actor.packing", meshes=None)
    assert model.config._attn_implementation == before != ATTENTION
    assert model.training
    assert f"rows are padded, not packed: {kind} cannot read packed rows: " in caplog.text
    assert reason in caplog.text
    with pytest.raises(ConfigError, match=rf"actor\.packing = true, but {kind} cannot read packed rows: .*{reason}"):
        choose_packing(model, True, key="actor.packing", meshes=None)


def test_what_crosses_from_one_document_to_the_next_is_found_by_trying(caplog):
    """A model that looks back one token beside its attention, as convolutions do."""
    model = make("llama", {})

    def look_back(module, args, output):
        return output + output.roll(1, dims=1)

    model.model.layers[0].mlp.register_forward_hook(look_back)
    assert not choose_packing(model, None, key="actor.packing", meshes=None)
    assert "a document changes the next one's logits" in caplog.text


@pytest.mark.parametrize(("name", "wanted"), [("bloom", None), ("llama", False)])
def test_ranks_share_no_padded_rows(name, wanted):
    model = make(name, {})
    meshes = SimpleNamespace(cp=SimpleNamespace(size=lambda: 2))
    with pytest.raises(ConfigError, match=r"trainer\.parallel\.cp = 2 shares the tokens of packed rows"):
        choose_packing(model, wanted, key="actor.packing", meshes=meshes)
    assert model.config._attn_implementation != ATTENTION
