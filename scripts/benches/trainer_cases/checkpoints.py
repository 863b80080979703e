"""What a checkpoint in every step costs a step: written beside it, in its way, or not at all.

One rank trains the same batch again and again, and the ways take turns, so that a machine that slows down slows all of
them. What is saved is the whole state: weights and two moments in float32, 12 bytes a parameter, hashed and flushed to
the disk. A step with a checkpoint beside it is the copy, the step, and what the checkpoint still takes when the step is
done: with one in every step, the next one waits for that.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from asyncrl.algorithms import resolve
from asyncrl.config import ActorConfig, AlgorithmConfig, CheckpointConfig
from asyncrl.config.trainer import StarterModelConfig
from asyncrl.starter.model import build_model, build_tokenizer, save
from asyncrl.trainer.batch import Batch, build
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName, listed, size_of
from asyncrl.trainer.flight import Flight
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.rank_files import Piece
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack

SHAPE = StarterModelConfig(hidden_size=384, layers=8, heads=6, kv_heads=6)
"""About 19 M parameters."""
LANDING_S = 600.0


class Scene:
    """A learner with its batch, and a directory of checkpoints."""

    def __init__(self, root: Path, groups: int, group_size: int, tokens: int) -> None:
        tokenizer, actor = build_tokenizer(), ActorConfig(lr=1e-5)
        save(build_model(SHAPE, tokenizer, 0), tokenizer, root / "model", "float32")
        self.policy = Policy.load(
            root / "model",
            resolve(AlgorithmConfig(), actor, max_new_tokens=tokens),
            actor,
            arithmetic="float32",
            temperature=1.0,
            steps=1000,
            wire_dtype="float32",
            ranks=OneRank(),
        )
        self.learner, self.batch = Learner(self.policy), make_batch(groups, group_size, tokens)
        self.directory = root / "checkpoints"
        self.checkpoints = Checkpoints(self.directory, CheckpointConfig(keep_last=1))
        self.copy_s: list[float] = []
        self.write_s: list[float] = []

    def alone(self) -> None:
        """A step."""
        self.learner.step(self.batch)

    def blocking(self) -> None:
        """A step that waits for its checkpoint."""
        self.alone()
        self.write(None)

    def beside(self) -> None:
        """A step with a checkpoint beside it."""
        began_s = time.perf_counter()
        copied = self.checkpoints.copy(self.policy)
        self.copy_s.append(time.perf_counter() - began_s)
        flight = Flight("checkpoint", partial(self.write, copied))
        self.alone()
        assert flight.wait(LANDING_S), "the disk hangs"
        flight.landed()
        self.write_s.append(flight.seconds)

    def write(self, copied: Sequence[Piece] | None) -> Path:
        """Of the step that is done."""
        number = self.policy.optimizer_steps
        state = {"optimizer_steps": number}
        return self.checkpoints.save(CheckpointName(1, number, number), self.policy, state, OneRank(), copied=copied)


def measure(*, turns: int = 12, groups: int = 8, group_size: int = 8, tokens: int = 64) -> dict[str, float]:
    """Shares of a step that a checkpoint in every step adds, and what lies behind them.

    Args:
        turns: each is one step in each way; the first is left out.
        groups, group_size, tokens: of a step's batch; tokens of an answer.
    Returns:
        async_checkpoint_step_share: median over the turns of a step with a checkpoint beside it, over the step alone of
            the same turn, less 1.
        blocking_checkpoint_step_share: the same with a step that waits for the disk.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a rank has it (cluster.threads)
    try:
        with tempfile.TemporaryDirectory(prefix="asyncrl-checkpoints-") as scratch:
            scene = Scene(Path(scratch), groups, group_size, tokens)
            ways: dict[str, Callable[[], None]] = {
                "alone": scene.alone,
                "beside": scene.beside,
                "blocking": scene.blocking,
            }
            seconds = [{name: _timed(way) for name, way in ways.items()} for _ in range(turns + 1)][1:]
            num_bytes, _ = size_of(listed(scene.directory)[-1][1])
    finally:
        torch.set_num_threads(threads)
    return {
        "async_checkpoint_step_share": _share(seconds, "beside"),
        "blocking_checkpoint_step_share": _share(seconds, "blocking"),
        "checkpoint_step_s": round(statistics.median(turn["alone"] for turn in seconds), 3),
        "checkpoint_copy_s": round(statistics.median(scene.copy_s[1:]), 4),
        "checkpoint_write_s": round(statistics.median(scene.write_s[1:]), 3),
        "checkpoint_bytes": float(num_bytes),
    }


def make_batch(groups: int, group_size: int, tokens: int) -> Batch:
    """Random prompts of 8 tokens and answers with random rewards."""
    rng = np.random.default_rng(0)
    made = [
        Group(
            ordinal=ordinal,
            attempt=1,
            data_source="bench",
            trajectories=tuple(_trajectory(rng, tokens) for _ in range(group_size)),
        )
        for ordinal in range(groups)
    ]
    return build(made, [list(range(groups))], filter_zero_variance=False, lag_of=lambda version: 0, max_lag=8)


def _trajectory(rng: np.random.Generator, tokens: int) -> Trajectory:
    ids = rng.integers(2, 40, size=8 + tokens).astype(np.uint32)
    mask = np.arange(len(ids)) >= 8
    logprobs = np.where(mask, -3.0, 0.0).astype(np.float32)
    row = Row(token_ids=ids, mask=mask, logprobs=logprobs, spans=(Span(pack(1, 0), 0, tokens),), num_prompt_tokens=8)
    return Trajectory(rows=(row,), reward=float(rng.integers(0, 2)))


def _timed(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _share(seconds: Sequence[dict[str, float]], way: str) -> float:
    return round(statistics.median(turn[way] / turn["alone"] for turn in seconds) - 1, 4)


if __name__ == "__main__":
    print(measure())
