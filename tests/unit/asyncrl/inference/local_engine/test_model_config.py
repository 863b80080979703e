"""config.json: what is read, and what is refused because it would be computed wrongly."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from asyncrl.inference.local_engine.model_config import ModelConfig, UnsupportedModel

BASE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 50,
}


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_what_transformers_writes_is_read(config_class: type) -> None:
    written = config_class(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, rope_theta=5e5).to_dict()
    config = ModelConfig.from_dict(written)
    assert (config.hidden, config.heads, config.kv_heads, config.rope_theta) == (64, 4, 2, 5e5)
    assert config.qkv_bias == (config_class is Qwen2Config)
    assert config.qk_norm == (config_class is Qwen3Config)


def test_older_files_name_rope_theta_and_leave_things_out() -> None:
    config = ModelConfig.from_dict({**BASE, "rope_theta": 12345.0, "rope_scaling": None})
    assert (config.rope_theta, config.kv_heads, config.head_dim, config.tied) == (12345.0, 4, 16, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt2"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_what_the_engine_does_not_implement_is_refused_by_key(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match="rope_type" if key.startswith("rope") else key):
        ModelConfig.from_dict({**BASE, key: value})


def test_end_tokens_of_both_files_are_joined(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "eos_token_id": 3}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    assert ModelConfig.from_dir(tmp_path).eos_ids == {3, 4, 5}


@pytest.mark.parametrize("content", [None, "not json", "[1]"])
def test_a_directory_without_a_readable_config_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        ModelConfig.from_dir(tmp_path)
