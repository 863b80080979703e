"""An engine's model as SGLang builds it, small: fused qkv and gate_up, tensor parallel slices, tied head, padding.

`load_weights` takes the checkpoint's names and ends in `copy_` on views, like the real one's weight loaders.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB, LAYERS = 16, 4, 2, 4, 24, 22, 2
_Q, _KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


def checkpoint(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Random weights in the checkpoint's names; the head is tied, so it has none."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes |= {
            f"{layer}self_attn.q_proj.weight": (_Q, HIDDEN),
            f"{layer}self_attn.q_proj.bias": (_Q,),
            f"{layer}self_attn.k_proj.weight": (_KV, HIDDEN),
            f"{layer}self_attn.k_proj.bias": (_KV,),
            f"{layer}self_attn.v_proj.weight": (_KV, HIDDEN),
            f"{layer}self_attn.v_proj.bias": (_KV,),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, _Q),
            f"{layer}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{layer}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{layer}mlp.down_proj.weight": (HIDDEN, INNER),
            f"{layer}input_layernorm.weight": (HIDDEN,),
        }
    return {name: torch.randn(shape, generator=generator).mul(0.05).to(dtype) for name, shape in shapes.items()}


def save_checkpoint(weights: Mapping[str, Tensor], directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text('{"tie_word_embeddings": true}')
    return directory


def stepped(weights: Mapping[str, Tensor], seed: int, fraction: float = 0.05) -> dict[str, Tensor]:
    """The weights after a step: some words of every tensor differ by a few units in the last place."""
    generator = torch.Generator().manual_seed(seed)
    new = {}
    for name, tensor in weights.items():
        words = tensor.clone().view(torch.int16)
        chosen = torch.rand(words.shape, generator=generator) < fraction
        steps = torch.randint(-3, 4, words.shape, generator=generator).to(torch.int16)
        new[name] = torch.where(chosen, words + steps, words).view(tensor.dtype)
    return new


class FusedModel(nn.Module):
    """One tensor-parallel rank of the engine."""

    def __init__(self, rank: int = 0, world: int = 1, *, scaled_norm: bool = False) -> None:
        """`scaled_norm`: the loader computes with one tensor instead of copying it, so it has no address."""
        super().__init__()
        self.rank, self.world, self.scaled_norm = rank, world, scaled_norm
        self.kv_heads = max(1, KV_HEADS // world)
        q, kv, inner = _Q // world, self.kv_heads * HEAD_DIM, INNER // world
        self.vocab = -(-VOCAB // (4 * world)) * 4  # rows of this rank, padded
        self._parameters_of("embed", (self.vocab, HIDDEN))
        self._parameters_of("norm", (HIDDEN,))
        for i in range(LAYERS):
            self._parameters_of(f"qkv_{i}", (q + 2 * kv, HIDDEN))
            self._parameters_of(f"qkv_bias_{i}", (q + 2 * kv,))
            self._parameters_of(f"o_{i}", (HIDDEN, q))
            self._parameters_of(f"gate_up_{i}", (2 * inner, HIDDEN))
            self._parameters_of(f"down_{i}", (HIDDEN, inner))
            self._parameters_of(f"input_norm_{i}", (HIDDEN,))
        self.lm_head = self.embed  # tied

    def _parameters_of(self, name: str, shape: tuple[int, ...]) -> None:
        setattr(self, name, nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            if name == "lm_head.weight":
                continue
            if name == "model.embed_tokens.weight":
                self._embedding(weight)
            elif name == "model.norm.weight":
                self.norm.data.copy_(weight * 1 if self.scaled_norm else weight)
            else:
                self._layer(name, weight)

    def _embedding(self, weight: Tensor) -> None:
        start = self.rank * self.vocab
        count = max(0, min(self.vocab, weight.shape[0] - start))
        self.embed.data[:count].copy_(weight[start : start + count])
        self.embed.data[count:].fill_(0)

    def _layer(self, name: str, weight: Tensor) -> None:
        _, _, layer, *rest = name.split(".")
        part = rest[-2] if rest[-2] != layer else rest[0]
        q, kv, inner = _Q // self.world, self.kv_heads * HEAD_DIM, INNER // self.world
        if part in ("q_proj", "k_proj", "v_proj"):
            target = getattr(self, f"qkv_{layer}" if rest[-1] == "weight" else f"qkv_bias_{layer}")
            size = q if part == "q_proj" else kv
            # With more ranks than heads, several hold the same head.
            shard = self.rank if part == "q_proj" else self.rank * KV_HEADS // max(self.world, KV_HEADS)
            at = {"q_proj": 0, "k_proj": q, "v_proj": q + kv}[part]
            target.data.narrow(0, at, size).copy_(weight.narrow(0, shard * size, size))
        elif part in ("gate_proj", "up_proj"):
            target = getattr(self, f"gate_up_{layer}")
            target.data.narrow(0, inner * (part == "up_proj"), inner).copy_(weight.chunk(self.world, 0)[self.rank])
        elif part == "o_proj":
            getattr(self, f"o_{layer}").data.copy_(weight.narrow(1, self.rank * q, q))
        elif part == "down_proj":
            getattr(self, f"down_{layer}").data.copy_(weight.narrow(1, self.rank * inner, inner))
        else:
            getattr(self, f"input_norm_{layer}").data.copy_(weight)


def engine_of(directory: Path, rank: int = 0, world: int = 1, *, scaled_norm: bool = False) -> FusedModel:
    """A model that loaded a directory, as a server does when it starts."""
    model = FusedModel(rank, world, scaled_norm=scaled_norm)
    model.load_weights(load_file(directory / "model.safetensors").items())
    return model


def bits(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter's bits, copied."""
    return {name: parameter.detach().view(torch.int16).clone() for name, parameter in model.named_parameters()}


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
