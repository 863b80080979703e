"""Packed rows against padded ones: the same step of the same policy on heavy-tailed lengths, in turn, on one thread.

Tokens a second are real ones: padding counts for nothing. The padded side is this trainer's own, which puts rows of
like length together and so pads little where a step has many rows. `as_they_come` is what a trainer that pads rows in
their order would push through for each real token, by counting. Seconds are the CPU's, which on a shared machine do not
count who else ran. A ratio is the median over turns; `_low` and `_high` are its extremes.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from asyncrl.algorithms import resolve
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.config.trainer import StarterModelConfig
from asyncrl.starter.model import build_model, build_tokenizer, save
from asyncrl.trainer.batch import Batch, build
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing import packed, padded
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.policy import Policy
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack

SHAPE = StarterModelConfig(hidden_size=256, layers=5, heads=8, kv_heads=4)
BUDGET, SHORTEST, LONGEST, PROMPT, GROUP_SIZE = 4096, 64, 2048, 32, 8


def measure(*, groups: int = 8, turns: int = 5, seed: int = 0) -> dict[str, float | None]:
    """Figures of `turns` steps of each side on `groups` x 8 rows."""
    torch.set_num_threads(1)
    batch, lengths = _batch(groups, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as directory:
        sides = {name: _learner(Path(directory), packing=name == "packed") for name in ("packed", "padded")}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, learner in sides.items():
            begun = time.process_time()
            learner.step(batch)
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - begun)
    ratios = [slow / fast for fast, slow in zip(seconds["packed"], seconds["padded"], strict=True)]
    tokens = int(lengths.sum())
    return {
        "packed_over_padded": statistics.median(ratios),
        "packed_over_padded_low": min(ratios),
        "packed_over_padded_high": max(ratios),
        **{f"{name}_tokens_per_s": tokens / statistics.median(seconds[name]) for name in sides},
        "packed_micro_batches": len(packed(lengths, BUDGET)),
        "padded_micro_batches": len(padded(lengths, BUDGET)),
        "padding_share": 1 - tokens / sum(len(part) * int(lengths[part].max()) for part in padded(lengths, BUDGET)),
        "as_they_come": _as_they_come(lengths) / tokens,
    }


def _batch(groups: int, rng: np.random.Generator) -> tuple[Batch, np.ndarray]:
    """Rows whose lengths have a heavy tail, and the tokens of each that are read."""
    made, lengths = [], []
    for ordinal in range(groups):
        members = []
        for number in range(GROUP_SIZE):
            length = int(np.clip(rng.lognormal(5.5, 1.0), SHORTEST, LONGEST))
            mask = np.arange(length) >= PROMPT
            row = Row(
                token_ids=rng.integers(2, 50, length).astype(np.uint32),
                mask=mask,
                logprobs=np.where(mask, -3.9, 0).astype(np.float32),
                spans=(Span(pack(1, 0), 0, int(mask.sum())),),
                num_prompt_tokens=PROMPT,
            )
            members.append(Trajectory(rows=(row,), reward=float(number % 2)))
            lengths.append(length - 1)  # the last token is predicted, and not read
        made.append(Group(ordinal=ordinal, attempt=1, data_source="toy", trajectories=tuple(members)))
    parts = [list(range(groups))]
    batch = build(made, parts, filter_zero_variance=False, lag_of=lambda version: 0, max_lag=8)
    return batch, np.array(lengths, dtype=np.int64)


def _learner(directory: Path, *, packing: bool) -> Learner:
    tokenizer = build_tokenizer()
    save(build_model(SHAPE, tokenizer, 0), tokenizer, directory, "float32")
    actor = ActorConfig(lr=1e-5, micro_batch_tokens=BUDGET, packing=packing)
    return Learner(
        Policy.load(
            directory,
            resolve(AlgorithmConfig(), actor),
            actor,
            arithmetic="float32",
            temperature=1.0,
            steps=1000,
            wire_dtype="float32",
            ranks=OneRank(),
        )
    )


def _as_they_come(lengths: np.ndarray) -> int:
    """Tokens, padding included, of rows in their order: each micro-batch as many rows as fit when padded."""
    total, part = 0, np.zeros(0, dtype=np.int64)
    for length in lengths.tolist():
        more = np.append(part, length)
        if len(part) and more.max() * len(more) > BUDGET:
            total, more = total + int(part.max()) * len(part), more[-1:]
        part = more
    return total + (int(part.max()) * len(part) if len(part) else 0)
