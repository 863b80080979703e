"""Bytes of a version: all weights trained, an adapter that is added before its sums are sent, an adapter sent alone.

    scripts/bench adapters [--shapes tiny,135m] [--rank 16] [--steps 4] [--lr 1e-6] [--lora-lr 1e-5]

A Llama with random weights (bfloat16 on the wire) and an adapter on every linear layer take real AdamW steps on the
loss of random tokens; each step is published by a real publisher into files in a temporary folder. All forms of the
adapter are of the same steps. `<shape>_<form>_mib` is the mean over the steps after the first two, `_share` what that
is of the whole model, `_changed` the share of its words that differ, `_s` seconds of a publish on one thread. What is
sent of sums grows with the learning rate, what is sent of an adapter does not. It does not show a network.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from asyncrl.config import Config, LoraConfig
from asyncrl.trainer.lora import attach
from asyncrl.trainer.lora_weights import AdapterWeights
from asyncrl.trainer.weights import Weights, WholeWeights
from weightsync.adapter_origin import write_origin
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.report import PublishReport
from weightsync.shard import untrained_shards
from weightsync.transport import open_transport
from weightsync.versions import pack

SHAPES = {"tiny": (50, 64, 2, 4, 2, 192), "135m": (49152, 576, 30, 9, 3, 1536)}
"""Vocabulary, width, layers, heads, key and value heads, inner width; 135m are SmolLM-135M's."""

WARM_UP = 2
TOKENS = (2, 48)


def main(argv: Sequence[str] = ()) -> dict[str, float]:
    """Figures by shape and form."""
    parser = argparse.ArgumentParser(prog="scripts/bench adapters", description=__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4, help="that count, after two that do not")
    parser.add_argument("--lr", type=float, default=1e-6, help="of all weights")
    parser.add_argument("--lora-lr", type=float, default=1e-5, help="of an adapter")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    figures: dict[str, float] = {}
    for shape in options.shapes.split(","):
        with tempfile.TemporaryDirectory(prefix="asyncrl-adapters-") as scratch:
            found = measure(Path(scratch), shape, options)
        figures |= {f"{shape}_{name}": value for name, value in found.items()}
    return figures


def measure(scratch: Path, shape: str, options: argparse.Namespace) -> dict[str, float]:
    """One shape, in all three forms."""
    model_dir, lora = scratch / "model", LoraConfig(rank=options.rank, alpha=2.0 * options.rank)
    _model(shape).to(torch.bfloat16).save_pretrained(model_dir)
    manifest = Manifest.from_model_dir(model_dir, "bfloat16")
    module = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    whole = _run(module, options.lr, options.steps, {"all": _Side(WholeWeights(module), model_dir, scratch / "all")})
    del module
    module = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    adapter = attach(module, lora, seed=0)
    sides, digest = {}, digest_of_model_dir(model_dir, manifest)
    sides["merged"] = _Side(AdapterWeights(module, adapter), model_dir, scratch / "merged")
    for dtype in ("float32", "bfloat16"):
        alone = AdapterWeights(module, adapter, travels_as=dtype)
        shapes = alone.adapter_shapes()
        assert shapes is not None
        origin = write_origin(scratch / f"origin-{dtype}", shapes, dtype, model_dir, digest)
        sides[f"alone_{dtype}"] = _Side(alone, origin, scratch / dtype)
    reports = {**whole, **_run(module, options.lora_lr, options.steps, sides)}
    figures = {
        "mib": manifest.num_bytes / 2**20,
        "adapter_share": sum(map(_size, shapes.values())) / manifest.num_words,
    }
    for form, (seconds, of_form) in reports.items():
        num_bytes = mean(report.num_bytes for report in of_form)
        figures |= {
            f"{form}_mib": num_bytes / 2**20,
            f"{form}_share": num_bytes / manifest.num_bytes,
            f"{form}_changed": mean(report.num_changed / report.num_words for report in of_form),
            f"{form}_s": mean(seconds),
        }
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


class _Side:
    """A publisher of one form."""

    def __init__(self, weights: Weights, origin: Path, directory: Path) -> None:
        manifest, config = Manifest.from_model_dir(origin), WeightsyncConfig(directory=str(directory / "parts"))
        held = {shard.name for shard in weights.shards(manifest.dtypes)}
        rest = untrained_shards(origin, manifest, held)
        self.weights, self._number = weights, 0
        self._publisher = WeightPublisher(
            manifest,
            lambda: [*weights.shards(manifest.dtypes), *rest],
            open_log(str(directory / "log"), "bench"),
            open_transport(config, "", "bench"),
            config,
        )
        self._publisher.publish_origin(origin)
        self._publisher.claim(1)

    def publish(self) -> tuple[float, PublishReport]:
        """Seconds of the next version, and what it was."""
        self._number += 1
        began = perf_counter()
        report = self._publisher.publish(pack(1, self._number))
        return perf_counter() - began, report


def _run(
    module: LlamaForCausalLM, lr: float, steps: int, sides: dict[str, _Side]
) -> dict[str, tuple[list[float], list[PublishReport]]]:
    parameters = list(next(iter(sides.values())).weights.trained().values())
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=Config().actor.betas, weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(1)
    found: dict[str, tuple[list[float], list[PublishReport]]] = {form: ([], []) for form in sides}
    for step in range(WARM_UP + steps):
        ids = torch.randint(0, module.config.vocab_size, TOKENS, generator=generator)
        module(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for form, side in sides.items():
            seconds, report = side.publish()
            if step >= WARM_UP:
                found[form][0].append(seconds)
                found[form][1].append(report)
    return found


def _model(shape: str) -> LlamaForCausalLM:
    vocabulary, width, layers, heads, kv_heads, inner = SHAPES[shape]
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=inner,
            tie_word_embeddings=True,
        )
    )


def _size(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())
