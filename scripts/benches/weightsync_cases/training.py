"""Weights before and after real steps: a SmolLM-135M-shaped model in training, and the step that AdamW takes next.

The model starts from random numbers, learns to continue text (the source of Python's library, words as tokens) for some
steps, and then takes policy-gradient steps with a fresh AdamW at a learning rate of such runs. The last step is kept as
its direction, so that one state of weights, moments and gradients gives a pair at every fraction of changed words: the
learning rate alone decides. Words are the bfloat16 image of the float32 masters before and after.
"""

import re
import sys
import sysconfig
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from weightsync.layout import Words
from weightsync.manifest import Manifest

Floats = npt.NDArray[np.float32]

ROWS, LENGTH = 2, 64
RL_RATE, DECAY = 1e-6, 0.01
SAMPLE = 1 << 21
"""Words by which the learning rate of a fraction is found."""


@dataclass(frozen=True)
class Shape:
    """A Llama by its sizes; embeddings are tied."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    def config(self) -> LlamaConfig:
        """As transformers wants it."""
        return LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.intermediate,
            vocab_size=self.vocab,
            max_position_embeddings=2048,
            architectures=["LlamaForCausalLM"],
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
        )


SMOL_135M = Shape(576, 30, 9, 3, 1536, 49152)
TINY = Shape(128, 4, 4, 2, 384, 2048)


@dataclass(frozen=True)
class Trained:
    """A model in training.

    Attributes:
        manifest: its tensors, bfloat16.
        masters: [n] float32, in the manifest's order.
        direction: [n] what AdamW's next step subtracts, by learning rate.
    """

    manifest: Manifest
    masters: Floats
    direction: Floats

    def words(self, rate: float = 0.0) -> Words:
        """The bfloat16 words after a step at this learning rate; 0: before it."""
        found = np.empty(self.masters.size, np.uint16)
        for at in range(0, found.size, SAMPLE):
            some = slice(at, at + SAMPLE)
            found[some] = bf16(self.masters[some] - np.float32(rate) * self.direction[some])
        return found

    def rate_for(self, fraction: float) -> float:
        """The learning rate at which about `fraction` of the words change."""
        stride = max(1, self.masters.size // SAMPLE)
        masters, direction = self.masters[::stride].copy(), self.direction[::stride].copy()
        old, low, high = bf16(masters), 1e-10, 1.0
        for _ in range(30):
            rate = (low * high) ** 0.5
            changed = float(np.mean(bf16(masters - np.float32(rate) * direction) != old))
            low, high = (rate, high) if changed < fraction else (low, rate)
        return rate


def bf16(values: Floats) -> Words:
    """The words of float32 numbers in bfloat16, rounded to the nearest even."""
    image = torch.from_numpy(values).to(torch.bfloat16)
    found: Words = image.view(torch.int16).numpy().view(np.uint16)
    return found


def trained(shape: Shape, first_steps: int, rl_steps: int, kept: Path | None = None) -> Trained:
    """Train, or read what an earlier run left in the folder `kept`.

    Args:
        shape: of the model.
        first_steps: on text, at 1e-3.
        rl_steps: with random advantages, at RL_RATE; the last one is the direction.
        kept: where masters and direction are left for the next run; None: nowhere.
    """
    names = [f"{one}-{shape.layers}-{first_steps}-{rl_steps}.npy" for one in ("masters", "direction")]
    if kept is not None and all((kept / name).exists() for name in names):
        masters, direction = (np.load(kept / name, mmap_mode="r") for name in names)
        return Trained(manifest_of(LlamaForCausalLM(shape.config())), masters, direction)
    torch.manual_seed(0)
    model = LlamaForCausalLM(shape.config())
    batches = text_batches(shape.vocab)
    _learn(model, batches, first_steps)
    found = _policy_steps(model, batches, rl_steps)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        np.save(kept / names[0], found.masters)
        np.save(kept / names[1], found.direction)
    return found


def manifest_of(model: nn.Module) -> Manifest:
    """Its parameters in bfloat16, each once: the head is the embedding."""
    tensors = ((name, "bfloat16", tuple(p.shape)) for name, p in model.named_parameters())
    return Manifest.of(tensors, [("lm_head.weight", "model.embed_tokens.weight")])


def text_loss(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Cross entropy of the next token, ids as of `text_batches`."""
    return F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())


def _learn(model: LlamaForCausalLM, batches: Iterator[Tensor], steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        start, ids = time.monotonic(), next(batches)
        loss = text_loss(model, ids)
        _step(model, optimizer, loss)
        print(f"text step {step}: loss {loss.item():.2f}, {time.monotonic() - start:.1f} s", file=sys.stderr)


def _policy_steps(model: LlamaForCausalLM, batches: Iterator[Tensor], steps: int) -> Trained:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RL_RATE, betas=(0.9, 0.999), weight_decay=DECAY)
    for step in range(steps):
        if step == steps - 1:
            optimizer.param_groups[0]["lr"] = 0.0  # moments and gradients move, the weights wait for the direction
        ids, advantages = next(batches), torch.randn(ROWS)
        logits = model(ids[:, :-1]).logits
        logprobs = -F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ROWS, -1)
        _step(model, optimizer, -(advantages[:, None] * logprobs).mean())
    manifest, parameters = manifest_of(model), dict(model.named_parameters())
    masters = np.empty(manifest.num_words, np.float32)
    direction = np.empty_like(masters)
    for spec in manifest.tensors:
        run, parameter = slice(spec.offset, spec.offset + spec.num_words), parameters[spec.name]
        masters[run] = parameter.detach().flatten().numpy()
        direction[run] = _adamw_direction(parameter, optimizer.state[parameter]).flatten().numpy()
    return Trained(manifest, masters, direction)


def _adamw_direction(parameter: nn.Parameter, state: dict[str, Any]) -> Tensor:
    """arXiv:1711.05101, algorithm 2, divided by the learning rate."""
    step = float(state["step"])
    mean = state["exp_avg"] / (1 - 0.9**step)
    root = (state["exp_avg_sq"] / (1 - 0.999**step)).sqrt()
    found: Tensor = mean / (root + 1e-8) + DECAY * parameter.detach()
    return found


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def text_batches(vocab: int) -> Iterator[Tensor]:
    """[ROWS, LENGTH + 1] token ids without end; words as often as in text, so that rare rows stay rare."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:80]
    words = re.findall(r"\w+|[^\w\s]|\n", "".join(file.read_text(errors="ignore") for file in files))
    ids = torch.tensor([zlib.crc32(word.encode()) % vocab for word in words])
    draw = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(0, len(ids) - LENGTH - 1, (ROWS,), generator=draw).tolist()
        yield torch.stack([ids[start : start + LENGTH + 1] for start in starts])
