"""Four ranks that train in one arrangement after the other: python -m tests.support.split_rank.

Arguments: model directory, beside which is one of a model with experts, and output directory. Its last line is what
each rank found, by arrangement.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.config import Config, ParallelConfig, TrainerConfig
from asyncrl.starter.model import build_tokenizer, save
from asyncrl.trainer.parallel import ProcessGroup, open_ranks
from tests.support import policy_rank, shared_rows
from tests.support.sliced_facts import sliced_facts
from tests.support.two_ranks import forked_ranks

ARRANGEMENTS = {
    "fsdp 4": ParallelConfig(fsdp=4),
    "fsdp 2 x tp 2": ParallelConfig(fsdp=2, tp=2),
    "replicate 2 x tp 2": ParallelConfig(replicate=2, tp=2, offload=True),
    "fsdp 2 x cp 2": ParallelConfig(fsdp=2, cp=2),
    "cp 2 x tp 2": ParallelConfig(cp=2, tp=2),
    "tp 2": ParallelConfig(tp=2),
}
SAVED, SHARED = "fsdp 2 x tp 2", "fsdp 2 x cp 2"
EXPERTS = "experts"
"""Name of the directory, beside the model's, of a model with experts."""


def write_model(directory: Path) -> Path:
    """A two-layer Qwen3, which has norms of each head, with tied embeddings; returns `directory`."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            tie_word_embeddings=True,
            max_position_embeddings=64,
        )
    )
    with torch.no_grad():  # larger than at its birth, so that logprobs differ visibly between tokens
        for parameter in model.parameters():
            parameter.mul_(8) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    save(model, tokenizer, directory, "bfloat16")
    return directory


def main(model_dir: Path, out: Path) -> dict:
    """What this rank found, by arrangement."""
    found = {}
    ranks = open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=ParallelConfig(fsdp=4))))
    assert isinstance(ranks, ProcessGroup)
    for name, parallel in ARRANGEMENTS.items():
        ranks.arrange(ranks.rank, parallel, ranks.device, patience_s=250.0)
        if ranks.rank >= parallel.world:
            continue
        found[name] = policy_rank.train(model_dir, out / name, ranks)
        if name == SHARED:
            found["shared rows"] = shared_rows.facts(model_dir, ranks, ranks.place.data_rank, ranks.place.data_world)
        if name == SAVED:
            found["experts"] = policy_rank.train(model_dir.with_name(EXPERTS), out / EXPERTS, ranks)
        if parallel.world == 2:
            found["layers"] = sliced_facts(ranks.meshes.tp)
            found["resumed"] = policy_rank.train(model_dir, out / "resumed", ranks, 2, out / SAVED / "checkpoints")
    ranks.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(forked_ranks(4, lambda: main(Path(sys.argv[1]), Path(sys.argv[2])))))
