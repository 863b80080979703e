"""Ours against TRL on one scene, in turns on the same two cores: samples a second, and steps to a reward."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benches.peer_environments import SCRIPTS, environment
from scripts.benches.trainer_cases.scenes import Scene
from scripts.benches.whole_runs import run

RUN_S = 1800
WARM_STEPS = 5
"""Steps that are left out of a speed: caches fill, and ours begins with a full buffer."""
AVERAGED = 10
"""Steps over which a reward is averaged before it counts as reached; run_trl.py does the same."""


@dataclass(frozen=True)
class Training:
    """What one run of either program showed: seconds of its steps, samples and tokens of a step, rewards by step, and
    the share of its steps' time in which the trainer waited, where that is known."""

    steps_s: list[float]
    samples: int
    tokens: float
    rewards: list[float]
    stall_share: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """End to end, over the steps after the first ones."""
        kept = self.steps_s[WARM_STEPS:]
        return self.samples * len(kept) / sum(kept)

    def steps_to(self, reward: float) -> int | None:
        """The first step at which the mean of the last rewards reaches `reward`."""
        for end in range(AVERAGED, len(self.rewards) + 1):
            if statistics.fmean(self.rewards[end - AVERAGED : end]) >= reward:
                return end
        return None


def ours(scene: Scene, directory: Path, steps: int, *overrides: str) -> Training:
    """Train the scene with `asyncrl train --mode separate_async` and a rollout cluster beside it."""
    context = scene.max_new_tokens + 16
    keys = (
        f"model.path={directory / 'model'}",
        "starter=null",
        f"data.train_files=[{directory / 'train.parquet'}]",
        "data.val_files=[]",
        "data.max_prompt_tokens=8",
        f"rollout.n={scene.group}",
        f"rollout.max_new_tokens={scene.max_new_tokens}",
        f"rollout.reward.file={SCRIPTS / 'repeat_reward.py'}",
        "rollout.reward.workers=1",
        f"inference.context_length={context}",
        "inference.max_running_requests=128",
        f"schedule.groups_per_step={scene.prompts}",
        f"actor.lr={scene.lr}",
        "actor.warmup_steps=0",
        "actor.clip_ratio_high=0.2",
        f"trainer.steps={steps}",
        f"trainer.checkpoint.every_steps={steps}",
        f"run.seed={scene.seed}",
    )
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as scratch:
        found = run("separate_async", Path(scratch) / scene.name, [*keys, *overrides])
    ends = [at for _, at in sorted(found.step_times_s().items())]
    lines = [line for line in found.lines if "actor/pg_loss" in line]
    tokens = statistics.fmean(float(line["response_length/mean"]) for line in lines) * scene.prompts * scene.group
    return Training(
        [later - earlier for earlier, later in itertools.pairwise(ends)],
        scene.prompts * scene.group,
        tokens,
        [float(line["critic/rewards/mean"]) for line in lines],
        found.summary["stall_share"],
    )


def trl(directory: Path, steps: int, threads: int, until: float | None = None) -> Training:
    """Train the scene with TRL, in an environment of its own."""
    command = [str(environment("trl")), str(SCRIPTS / "run_trl.py"), str(directory)]
    command += ["--steps", str(steps), "--threads", str(threads), *(["--until", str(until)] if until else [])]
    # TRL's own threads may spin on nobody's time but its own: it runs alone.
    settings = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"TRL ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    steps_s = found["steps_s"]
    return Training(steps_s, found["samples"], found["tokens"] / len(steps_s), found["rewards"])


def fastest_threads(directory: Path) -> int:
    """One thread or two, whichever TRL is faster with here."""
    speeds = {threads: trl(directory, 2 * WARM_STEPS, threads).samples_per_s for threads in (1, 2)}
    print(f"TRL, samples/s by threads: {speeds}", file=sys.stderr)
    return max(speeds, key=lambda threads: speeds[threads])


def compare_speed(scene: Scene, directory: Path, *, our_steps: int, trl_steps: int, repeats: int) -> dict[str, float]:
    """Medians over turns of samples a second, and of the ratio within each turn."""
    threads = fastest_threads(directory)
    pairs, stalls = [], []
    for _ in range(repeats):
        peer, own = trl(directory, trl_steps, threads), ours(scene, directory, our_steps)
        pairs.append((own.samples_per_s, peer.samples_per_s))
        stalls.append(own.stall_share)
        print(
            f"{scene.name}: ours {own.samples_per_s:.1f} samples/s ({own.tokens / own.samples:.1f} tokens each), TRL "
            f"{peer.samples_per_s:.1f} ({peer.tokens / peer.samples:.1f}), {threads} threads; ours stalled "
            f"{own.stall_share:.0%} of its steps",
            file=sys.stderr,
        )
    return {
        f"ours_samples_per_s_{scene.name}": round(statistics.median(own for own, _ in pairs), 2),
        f"trl_samples_per_s_{scene.name}": round(statistics.median(peer for _, peer in pairs), 2),
        f"vs_trl_{scene.name}": round(statistics.median(own / peer for own, peer in pairs), 3),
        f"stall_share_{scene.name}": round(statistics.median(stalls), 3),
    }


def compare_learning(scene: Scene, directory: Path, *, reward: float, most_steps: int) -> dict[str, float | None]:
    """Steps of the same size until the reward, by ours over TRL's."""
    peer = trl(directory, most_steps, 1, until=reward).steps_to(reward)
    own = ours(scene, directory, most_steps, *REWARD_KEYS).steps_to(reward)
    name = f"seed{scene.seed}"
    ratio = None if own is None or peer is None else round(own / peer, 3)
    return {f"ours_steps_to_reward_{name}": own, f"trl_steps_to_reward_{name}": peer, f"ratio_{name}": ratio}


REWARD_KEYS: tuple[str, ...] = ()
