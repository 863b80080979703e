"""What the engine needs to know of a Hugging Face `config.json`, and which models it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON read from config.json: any shape until it is checked here

SUPPORTED = ("llama", "qwen2", "qwen3")


class UnsupportedModel(ValueError):
    """The model directory holds something this engine would compute wrongly; the message names the key."""


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one decoder-only model.

    `head_dim` times `heads` need not equal `hidden` (Qwen3). `eos_ids` joins config.json and generation_config.json.
    """

    model_type: str
    architectures: tuple[str, ...]
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    rope_theta: float
    rms_eps: float
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    eos_ids: frozenset[int]

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @classmethod
    def from_dir(cls, path: Path) -> ModelConfig:
        """Reads `config.json` and, if there, `generation_config.json`.

        Raises:
            UnsupportedModel: no readable config, another architecture, or a setting the engine does not implement.
        """
        config = _read_json(path / "config.json")
        generation = path / "generation_config.json"
        extra = _read_json(generation) if generation.exists() else {}
        return cls.from_dict(config, generation=extra)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], *, generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """The same from parsed JSON.

        Raises:
            UnsupportedModel: see `from_dir`.
        """
        model_type = str(config.get("model_type"))
        if model_type not in SUPPORTED:
            raise UnsupportedModel(
                f"model_type is {model_type!r}; the local engine runs {', '.join(SUPPORTED)}. "
                "Serve this model with SGLang (inference.engine: sglang)."
            )
        _refuse_unsupported(config)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        attention_bias = bool(config.get("attention_bias"))
        return cls(
            model_type=model_type,
            architectures=tuple(config.get("architectures") or ()),
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            max_positions=int(config.get("max_position_embeddings") or 2048),
            rope_theta=float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0),
            rms_eps=float(config.get("rms_norm_eps") or 1e-6),
            tied=bool(config.get("tie_word_embeddings")),
            qk_norm=model_type == "qwen3",
            # Qwen2 has these biases always and no key for them; it has none on the output projection.
            qkv_bias=model_type == "qwen2" or attention_bias,
            o_bias=model_type != "qwen2" and attention_bias,
            mlp_bias=model_type == "llama" and bool(config.get("mlp_bias")),
            eos_ids=_eos_ids(config) | _eos_ids(generation or {}),
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(
            f"{path} cannot be read as JSON ({error}). A model directory needs config.json and *.safetensors; "
            "check --model-path."
        ) from error
    if not isinstance(value, dict):
        raise UnsupportedModel(
            f"{path} holds {type(value).__name__}, expected an object; it is no Hugging Face config."
        )
    return value


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes rope_parameters, 4 wrote rope_scaling beside rope_theta.
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    rope = _rope(config)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    found = {
        "rope_type": (kind, "default"),
        "hidden_act": (config.get("hidden_act") or "silu", "silu"),
        "partial_rotary_factor": (rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0, 1.0),
        "use_sliding_window": (bool(config.get("use_sliding_window")), False),
        "layer_types": (sorted(set(config.get("layer_types") or ["full_attention"])), ["full_attention"]),
        "quantization_config": (config.get("quantization_config"), None),
    }
    for key, (value, wanted) in found.items():
        if value != wanted:
            raise UnsupportedModel(
                f"config.json has {key} = {value!r}; the local engine implements {wanted!r} only and would sample "
                "from another distribution than the trainer's. Serve this model with SGLang (inference.engine: sglang)."
            )


def _eos_ids(config: Mapping[str, Any]) -> frozenset[int]:
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    return frozenset(value if isinstance(value, list) else [value])
