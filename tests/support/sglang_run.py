"""A run whose servers are the real SGLang: a trainer of several ranks with uneven shards, and what servers hold."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.inference.client import ServerClient
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.server import StartedServer
from buffer.versions import pack
from tests.support.local_models import EOS, VOCAB, save_model
from tests.support.rank_threads import RankThread, RankThreads
from tests.support.rollout_cluster import CONTEXT, RolloutCluster
from tests.support.sglang_python import warm_python
from weightsync.layout import Segment
from weightsync.manifest import Manifest
from weightsync.publisher import PublishReport, WeightPublisher
from weightsync.shard import LocalShard

SPECIAL = (0x8000, 0x7FC1, 0xFFA5, 0x7F80, 0x0001)
"""Words of bfloat16 that arithmetic would change: -0.0, two NaNs with a payload, infinity, the smallest denormal."""

PROMPTS = ([3, 1, 4, 1, 5], list(range(20)), [7], [40, 41, 42, 43])


def save_moe(directory: Path) -> Path:
    """A tiny Qwen3-MoE, with the tokenizer of the other tiny models."""
    save_model(directory, "qwen3")
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 48, "num_experts": 4},
        **{"num_experts_per_tok": 2, "vocab_size": VOCAB, "max_position_embeddings": 4096, "eos_token_id": EOS},
        **{"bos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False, "norm_topk_prob": True},
    )
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


class SglangRun:
    """The weights of a model, their publishers, and a cluster whose hosts start SGLang."""

    def __init__(self, directory: Path, model_dir: Path, *, ranks: int = 3, tp: int = 1, **weightsync: Any) -> None:
        self.model_dir, self.tp, self.version = model_dir, tp, 0
        self.manifest = Manifest.from_model_dir(model_dir, "bfloat16")
        listed = load_file(model_dir / "model.safetensors")
        self.weights = {spec.name: listed[spec.name] for spec in self.manifest.tensors}
        self.cluster = RolloutCluster(directory, model_dir=model_dir, **weightsync)
        self.group = RankThreads(ranks)
        self.spec: dict[str, Any] = {"python": warm_python(), "tp": tp, "max_running_requests": 8}
        self.publishers: list[WeightPublisher] = self._on_ranks(self._publisher)

    def step(self, seed: int, fraction: float = 0.02, *, special: bool = False) -> dict[str, Tensor]:
        """Change about a fraction of every tensor's words by a few units in the last place, or to special ones."""
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in self.weights.items():
            finite = torch.where(tensor.isfinite(), tensor, 0.01)
            words = finite.view(torch.int16)
            chosen = torch.rand(words.shape, generator=generator) < fraction
            near = words + torch.randint(-3, 4, words.shape, generator=generator).to(torch.int16)
            near = torch.where(near.view(tensor.dtype).isfinite(), near, words)  # a few units from -0.0 there are NaNs
            odd = torch.tensor(SPECIAL).to(torch.int16)[torch.randint(0, 5, words.shape, generator=generator)]
            self.weights[name] = torch.where(chosen, odd if special else near, words).view(tensor.dtype)
        return self.weights

    def publish(self) -> PublishReport:
        """The next version, by all ranks."""
        self.version = pack(1, (self.version & 0xFFFFFFFF) + 1)
        return self._on_ranks(lambda rank: self.publishers[rank.rank].publish(self.version))[0]

    async def serving(self, name: str = "server-0", *, deadline_s: float = 120.0) -> str:
        """Wait until a server serves the newest version, and answer its needs as a trainer does; its address."""
        served = asyncio.create_task(self.cluster.serving(self.version, name, deadline_s=deadline_s))
        while not served.done():
            await asyncio.to_thread(self._on_ranks, lambda rank: self.publishers[rank.rank].answer_needs())
            await asyncio.wait([served], timeout=0.2)
        served.result()
        return self.cluster.log.acks()[name].url

    def export(self, directory: Path) -> Path:
        """The weights as a model directory that a server can start from."""
        copytree(self.model_dir, directory)
        save_file(self.weights, directory / "model.safetensors", {"format": "pt"})
        return directory

    def server(self, name: str, model_dir: Path) -> StartedServer:
        """A server that nobody updates."""
        return self.cluster.server(name, "sglang", **{**self.spec, "model_dir": model_dir})

    def _publisher(self, rank: RankThread) -> WeightPublisher:
        publisher = WeightPublisher(
            self.manifest,
            lambda: [self._shard(name, tensor, rank) for name, tensor in self.weights.items()],
            self.cluster.log,
            self.cluster.transport(),
            self.cluster.config,
            rank,
        )
        publisher.publish_origin(self.model_dir)
        publisher.claim(1)
        return publisher

    def _shard(self, name: str, tensor: Tensor, rank: RankThread) -> LocalShard:
        """Cut where no row ends, and the last rank holds nothing of small tensors."""
        size = -(-tensor.numel() // rank.world) + 7
        start, end = (min(tensor.numel(), size * i) for i in (rank.rank, rank.rank + 1))
        segments = (Segment(name, start, end - start),) if end > start else ()
        return LocalShard(name, tensor.view(-1)[start:end], segments)

    def _on_ranks(self, call: Any) -> list[Any]:
        found = self.group.run(call)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return found


def checksums(url: str) -> list[dict[str, str]]:
    """SGLang's own checksum of every parameter, by engine rank."""
    answer = httpx.post(f"{url}/weights_checker", json={"action": "checksum"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [rank["checksums"] for rank in answer.json()["ranks"]]


def expected_checksums(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """What `checksums` gives of these weights at one rank, fused and padded here as the server does it on a CPU: zeros
    to 64 rows of a vocabulary and to 32 inner dimensions of an MLP."""
    fused: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        rows, columns = (1, 32) if "down_proj" in name else (32 if "mlp" in name and "proj" in name else 1, 1)
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            rows = 64
        last = -tensor.shape[-1] % columns
        fused[name] = functional.pad(tensor, (0, last, 0, -len(tensor) % rows) if tensor.dim() > 1 else (0, 0))
    for first, rest, whole in (
        ("q_proj", ("k_proj", "v_proj"), "qkv_proj"),
        ("gate_proj", ("up_proj",), "gate_up_proj"),
    ):
        for name in [name for name in fused if first in name]:
            parts = [fused.pop(name)] + [fused.pop(name.replace(first, other)) for other in rest]
            fused[name.replace(first, whole)] = torch.cat(parts)
    for one, whole in (("gate_up_proj", "w13_weight"), ("down_proj", "w2_weight")):
        experts: dict[str, list[Tensor]] = {}
        for name in [name for name in fused if "experts" in name and one in name]:
            experts.setdefault(name.partition("experts")[0], []).append(fused.pop(name))
        fused |= {f"{layer}experts.{whole}": torch.stack(tensors) for layer, tensors in experts.items()}
    return {
        name: hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).digest()[:8].hex()
        for name, tensor in fused.items()
    }


async def greedy(client: ServerClient, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[tuple[object, ...]]:
    """Ids and logprobs of the likeliest answers; one request at a time, so that batching cannot matter."""
    found = []
    for prompt in prompts:
        sampling = Sampling(CONTEXT - len(prompt), temperature=1.0, top_p=1.0, top_k=1, stop_token_ids=(), seed=0)
        answer = await client.generate(prompt, sampling, extra_key=None, deadline_s=60.0)
        found.append((answer.token_ids, answer.logprobs))
    return found


def overwrite(url: str, payload: str, tp: int) -> None:
    """Replace weights behind the loader's back, through SGLang's own loading."""
    for path, body in (
        ("begin_weight_update", {"selector": "all"}),
        ("update_weights_from_tensor", {"serialized_named_tensors": [payload] * tp, "flush_cache": False}),
        ("end_weight_update", {}),
    ):
        answer = httpx.post(f"{url}/{path}", json=body, timeout=60)
        assert answer.status_code == 200, json.dumps(answer.json())
