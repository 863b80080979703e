"""A tiny model directory with experts, and groups that say which experts a server took."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.starter.model import build_tokenizer, save
from asyncrl.trainer.routing import COLUMN
from buffer import Group

NUM_EXPERTS, TOP_K = 5, 2


def write_tiny_moe(directory: Path) -> Path:
    """A three-layer Qwen3-MoE whose first layer is dense, with random weights; returns `directory`."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=24,
            moe_intermediate_size=12,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            num_experts=NUM_EXPERTS,
            num_experts_per_tok=TOP_K,
            norm_topk_prob=True,
            mlp_only_layers=[0],
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():  # larger than at its birth, so that logprobs and choices differ visibly between tokens
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    save(model, tokenizer, directory, "bfloat16")
    return directory


def with_experts(groups: Sequence[Group], num_layers: int, *, seed: int = 0, dtype: str = "uint8") -> list[Group]:
    """The groups with random recorded experts, different ones of each token."""
    rng = np.random.default_rng(seed)

    def routed(row):
        chosen = rng.permuted(np.tile(np.arange(NUM_EXPERTS), (len(row.token_ids), num_layers, 1)), axis=-1)
        return replace(row, columns={COLUMN: chosen[..., :TOP_K].astype(dtype)})

    return [
        replace(
            group, trajectories=tuple(replace(t, rows=tuple(routed(row) for row in t.rows)) for t in group.trajectories)
        )
        for group in groups
    ]
