"""An adapter as a directory in peft's form: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.trainer.lora import Adapter

PREFIX = "base_model.model."
"""What peft puts before the names of the model that it wraps."""
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PLAIN: Mapping[str, object] = {
    **dict.fromkeys(("use_rslora", "use_dora", "use_qalora", "lora_bias"), False),
    **dict.fromkeys(("rank_pattern", "alpha_pattern", "modules_to_save", "target_parameters", "use_bdlora"), None),
    "bias": "none",
}
"""Keys of peft's configuration that would make another function than W + alpha / rank x B A, and what they must be;
empty is as good as None."""


def read_adapter(directory: Path, adapter: Adapter) -> None:
    """Fill A and B, before the module is sharded, from what peft or an export of ours wrote.

    Raises:
        ConfigError: there is no such adapter, or it is of another rank, alpha, form or layers than `adapter`.
    """
    try:
        config: Mapping[str, Any] = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        stored = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(directory / TENSORS).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"lora.path = {directory} cannot be read as an adapter in peft's form ({CONFIG} and {TENSORS}): {error}"
        ) from error
    for key, theirs, ours in (
        ("rank", config.get("r"), adapter.rank),
        ("alpha", config.get("lora_alpha"), adapter.alpha),
    ):
        if theirs != ours:
            raise ConfigError(
                f"lora.path = {directory} is an adapter with {key} {theirs}, and lora.{key} = {ours}. Set lora.{key} = "
                f"{theirs} to go on from it."
            )
    other = next((key for key, value in PLAIN.items() if (config.get(key) or None) != (value or None)), None)
    if other is not None:
        raise ConfigError(
            f"lora.path = {directory} was made with {other} = {config[other]} in {CONFIG}: another function than W + "
            "alpha / rank x B A, which alone is trained and served here. Merge it into the model, and begin a new one."
        )
    parameters = adapter.parameters()
    differing = sorted(stored.keys() ^ parameters.keys())
    if differing:
        where = "only in the directory" if differing[0] in stored else "not in the directory"
        raise ConfigError(
            f"lora.path = {directory} and lora.target_modules do not have the same layers: {differing[0]} is {where} "
            f"({len(differing)} tensors differ). Set lora.target_modules to what the adapter was made with."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if stored[name].shape != parameter.shape:
                raise ConfigError(
                    f"lora.path = {directory}: {name} has shape {list(stored[name].shape)}, the model's layer needs "
                    f"{list(parameter.shape)}. The adapter is of another model."
                )
            parameter.copy_(stored[name])


def write_adapter(
    directory: Path, tensors: Mapping[str, Tensor], *, rank: int, alpha: float, targets: Sequence[str], base: Path
) -> None:
    """Write what PeftModel.from_pretrained reads.

    Args:
        tensors: whole A and B, named as Adapter.parameters names them.
        targets: last parts of the names of the layers.
        base: directory of the model that it is an adapter of.
    Raises:
        OSError: the disk is full or fails.
        SafetensorError: as safetensors wraps it.
    """
    directory.mkdir(parents=True)
    stored = {PREFIX + name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    save_file(stored, directory / TENSORS, {"format": "pt"})
    config = {
        **{key: None for key in PLAIN if PLAIN[key] is None},
        **{key: value for key, value in PLAIN.items() if value is not None},
        "base_model_name_or_path": str(base),
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": list(targets),
        "task_type": "CAUSAL_LM",
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
