"""The plain storage of a model's weights: fused tensors, and Hugging Face names as views into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from asyncrl.inference.local_engine.model_config import ModelConfig

DTYPES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class WeightsMismatch(ValueError):
    """Names or shapes in a checkpoint or update do not fit the model; nothing was written."""


@dataclass(frozen=True)
class LayerNames:
    """Fused parameter names of one layer, in the order `forward` reads them; None where the model has none."""

    input_norm: str
    qkv: str
    qkv_bias: str | None
    q_norm: str | None
    k_norm: str | None
    o: str
    o_bias: str | None
    post_norm: str
    gate_up: str
    gate_up_bias: str | None
    down: str
    down_bias: str | None


class Weights:
    """Fused tensors of one dtype whose storage never moves.

    `fused` has the names SGLang gives its parameters (`...qkv_proj.weight`), `views` has the checkpoint's
    (`...q_proj.weight`): copying into a view is a weight update. A tied head is the embedding under one name.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self.config, self.dtype = config, dtype
        self.fused: dict[str, Tensor] = {}
        self.views: dict[str, Tensor] = {}
        self.fused_name_of: dict[str, str] = {}
        self._add("model.embed_tokens.weight", (config.vocab, config.hidden))
        self.layers = [self._add_layer(f"model.layers.{index}.") for index in range(config.layers)]
        self._add("model.norm.weight", (config.hidden,))
        self.embedding, self.norm = "model.embed_tokens.weight", "model.norm.weight"
        self.head = self.embedding if config.tied else self._add("lm_head.weight", (config.vocab, config.hidden))

    def _add(self, fused: str, shape: tuple[int, ...], parts: Iterable[tuple[str, int]] = ()) -> str:
        tensor = self.fused[fused] = torch.zeros(shape, dtype=self.dtype)
        start = 0
        for name, rows in parts or ((fused, shape[0]),):
            self.views[name] = tensor[start : start + rows]
            self.fused_name_of[name] = fused
            start += rows
        return fused

    def _add_layer(self, prefix: str) -> LayerNames:
        c = self.config
        attention, mlp = prefix + "self_attn.", prefix + "mlp."

        def fused(owner: str, name: str, suffix: str, parts: tuple[tuple[str, int], ...], *inner: int) -> str:
            named = [(f"{owner}{part}_proj.{suffix}", rows) for part, rows in parts]
            return self._add(f"{owner}{name}_proj.{suffix}", (sum(rows for _, rows in parts), *inner), named)

        qkv = (("q", c.q_size), ("k", c.kv_size), ("v", c.kv_size))
        gate_up = (("gate", c.intermediate), ("up", c.intermediate))
        o, down = (("o", c.hidden),), (("down", c.hidden),)
        return LayerNames(
            input_norm=self._add(prefix + "input_layernorm.weight", (c.hidden,)),
            qkv=fused(attention, "qkv", "weight", qkv, c.hidden),
            qkv_bias=fused(attention, "qkv", "bias", qkv) if c.qkv_bias else None,
            q_norm=self._add(attention + "q_norm.weight", (c.head_dim,)) if c.qk_norm else None,
            k_norm=self._add(attention + "k_norm.weight", (c.head_dim,)) if c.qk_norm else None,
            o=fused(attention, "o", "weight", o, c.q_size),
            o_bias=fused(attention, "o", "bias", o) if c.o_bias else None,
            post_norm=self._add(prefix + "post_attention_layernorm.weight", (c.hidden,)),
            gate_up=fused(mlp, "gate_up", "weight", gate_up, c.hidden),
            gate_up_bias=fused(mlp, "gate_up", "bias", gate_up) if c.mlp_bias else None,
            down=fused(mlp, "down", "weight", down, c.intermediate),
            down_bias=fused(mlp, "down", "bias", down) if c.mlp_bias else None,
        )

    @torch.no_grad()
    def load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Copies tensors into their views, casting to the storage's dtype.

        Args:
            named_tensors: checkpoint names with full tensors, or anything that `Tensor.copy_` accepts.
        Returns:
            The fused names that were written.
        Raises:
            WeightsMismatch: an unknown name or another shape; tensors before it in the iteration were written.
        """
        touched: set[str] = set()
        for name, tensor in named_tensors:
            if self.skips(name):
                continue
            view = self._checked_view(name, tuple(tensor.shape))
            view.copy_(tensor)
            touched.add(self.fused_name_of[name])
        return touched

    def skips(self, name: str) -> bool:
        """Whether a checkpoint tensor is ignored, as SGLang ignores it: a tied head, precomputed rotary tables."""
        return "rotary_emb." in name or (name == "lm_head.weight" and self.config.tied)

    def _checked_view(self, name: str, shape: tuple[int, ...]) -> Tensor:
        view = self.views.get(name)
        if view is None:
            raise WeightsMismatch(
                f"tensor {name!r} is not part of this {self.config.model_type} model, which has {len(self.views)} "
                "tensors. Writing it nowhere would hide a wrong checkpoint; check the model path and its config.json."
            )
        if tuple(view.shape) != shape:
            raise WeightsMismatch(
                f"tensor {name!r} has shape {shape}, the model's is {tuple(view.shape)}; nothing of it was written. "
                "The checkpoint belongs to a model of another size."
            )
        return view

    def load_dir(self, path: Path) -> set[str]:
        """Loads every `*.safetensors` of a model directory, all of the model's tensors or none.

        Names and shapes are checked against the files' headers, and all data is read, before the first write.

        Returns:
            The fused names that were written: all.
        Raises:
            WeightsMismatch: no such files, a tensor is missing, unknown, or of another shape; nothing was written.
        """
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise WeightsMismatch(f"{path} holds no *.safetensors file; check the path, or export the model there.")
        try:
            tensors = dict(_read(files))
        except (OSError, safetensors.SafetensorError) as error:
            raise WeightsMismatch(f"{path}: a weight file cannot be read ({error}); nothing was written.") from error
        for name, tensor in tensors.items():
            if not self.skips(name):
                self._checked_view(name, tuple(tensor.shape))
        missing = sorted(self.views.keys() - tensors.keys())
        if missing:
            raise WeightsMismatch(
                f"{path} lacks {len(missing)} of the model's {len(self.views)} tensors, first {missing[0]!r}; "
                "nothing was written. Is the last part of a sharded checkpoint missing?"
            )
        return self.load(tensors.items())


def _read(files: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safetensors.safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118  (a safetensors reader is no mapping)
                yield name, reader.get_tensor(name)
