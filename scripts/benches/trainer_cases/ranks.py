"""Two ranks against one: the same groups on a 4 M parameter model, tokens a second of whole training steps.

    python -m scripts.benches.trainer_cases.ranks MODEL_DIR STEPS     one rank; RANK and WORLD_SIZE say which

Ranks are processes of one thread each that meet over gloo (FSDP2). Needs a core for each rank and nothing else running.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from asyncrl.algorithms import resolve
from asyncrl.cluster.ports import ReservedPort
from asyncrl.config import Config
from asyncrl.config.parallel import ParallelConfig
from asyncrl.config.trainer import ActorConfig, StarterModelConfig, TrainerConfig
from asyncrl.starter.model import build_model, build_tokenizer, save
from asyncrl.trainer.batch import build
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.parallel import assign, mini_batches, open_ranks
from asyncrl.trainer.policy import Policy
from buffer import Group, Row, Span, Trajectory

SHAPE = StarterModelConfig(hidden_size=256, layers=5, heads=4, kv_heads=4)
"""4.3 M parameters."""
VOCABULARY = 49
MICRO_BATCH_TOKENS = 4096
GROUPS, GROUP_SIZE, TOKENS = 16, 8, 256
RUN_S = 600
ROOT = Path(__file__).resolve().parents[3]


def model_dir(home: Path) -> Path:
    """The model's directory under `home`, made if it is missing."""
    directory = home / "ranks"
    if not (directory / "config.json").exists():
        tokenizer = build_tokenizer()
        save(build_model(SHAPE, tokenizer, 0), tokenizer, directory, "bfloat16")
    return directory


def compare(home: Path, repeats: int, steps: int) -> dict[str, float]:
    """Tokens a second of one rank and of two, in turns; the median of each turn's ratio."""
    directory = model_dir(home)
    turns = []
    for _ in range(repeats):
        one, two = (_tokens_per_s(directory, world, steps) for world in (1, 2))
        print(f"ranks: 1 {one:.0f} tokens/s, 2 {two:.0f}", file=sys.stderr)
        turns.append((one, two))
    return {
        "ranks1_tokens_per_s": round(statistics.median(one for one, _ in turns), 1),
        "ranks2_tokens_per_s": round(statistics.median(two for _, two in turns), 1),
        "ranks2_over_1": round(statistics.median(two / one for one, two in turns), 3),
    }


def _tokens_per_s(directory: Path, world: int, steps: int) -> float:
    with ReservedPort("127.0.0.1") as port:
        return _tokens_per_s_at(port.number, directory, world, steps)


def _tokens_per_s_at(port: int, directory: Path, world: int, steps: int) -> float:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    command = [sys.executable, "-m", "scripts.benches.trainer_cases.ranks", str(directory), str(steps)]
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **meeting, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=RUN_S) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"a rank of {world} ended with code {process.returncode}:\n{errors[-2000:]}")
    seconds = json.loads(outputs[0][0].splitlines()[-1])
    return GROUPS * GROUP_SIZE * TOKENS / statistics.median(seconds)


def groups() -> list[Group]:
    """Random answers of equal length, as two groups in three are in a run that has settled."""
    source = np.random.default_rng(0)
    found = []
    for ordinal in range(GROUPS):
        members = []
        for _ in range(GROUP_SIZE):
            row = Row(
                token_ids=source.integers(2, VOCABULARY, TOKENS).astype(np.uint32),
                mask=np.arange(TOKENS) >= TOKENS // 4,
                logprobs=np.full(TOKENS, -np.log(VOCABULARY), np.float32) * (np.arange(TOKENS) >= TOKENS // 4),
                spans=(Span(0, 0, TOKENS - TOKENS // 4),),
                num_prompt_tokens=TOKENS // 4,
            )
            members.append(Trajectory(rows=(row,), reward=float(source.integers(0, 2))))
        found.append(Group(ordinal=ordinal, attempt=1, data_source="toy", trajectories=tuple(members)))
    return found


def main(argv: Sequence[str]) -> int:
    """One rank: its share of the groups, `steps` times; prints seconds a step."""
    torch.set_num_threads(1)
    directory, steps = Path(argv[0]), int(argv[1])
    world = int(os.environ["WORLD_SIZE"])
    config = Config(trainer=TrainerConfig(parallel=ParallelConfig(fsdp=world)))
    ranks = open_ranks(config)
    actor = ActorConfig(lr=1e-6, micro_batch_tokens=MICRO_BATCH_TOKENS)
    algorithm = resolve(config.algorithm, actor)
    policy = Policy.load(
        directory,
        algorithm,
        actor,
        arithmetic="float32",
        temperature=1.0,
        steps=steps,
        wire_dtype="bfloat16",
        ranks=ranks,
    )
    every = groups()
    tokens = {group.ordinal: GROUP_SIZE * TOKENS for group in every}
    own = set(assign(tokens, world)[ranks.rank])
    batch = build(
        [group for group in every if group.ordinal in own],
        mini_batches(list(tokens), 1),
        filter_zero_variance=False,
        lag_of=lambda version: 0,
        max_lag=8,
    )
    learner, seconds = Learner(policy), []
    for _ in range(steps + 1):
        ranks.barrier()
        start_s = time.perf_counter()
        learner.step(batch)
        ranks.barrier()
        seconds.append(time.perf_counter() - start_s)
    print(json.dumps(seconds[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
