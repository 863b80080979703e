"""One run of the study: every step trains on groups that were sampled exactly eta versions earlier.

Sampler and trainer take turns in one process, so that the lag is what the condition says and not what the machine's
load makes of it. Everything else is the product's: engine, batch, estimator, correction, loss, optimizer, rewards.
At the start, as in a real run, the first eta steps train on groups of version 0.
"""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asyncrl.algorithms import resolve
from asyncrl.config import Config
from asyncrl.load_config import load
from asyncrl.metrics.held_out import held_out_score
from asyncrl.starter import task
from asyncrl.trainer import batch as batches
from asyncrl.trainer.evaluation import scores
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.measure import measure
from asyncrl.trainer.parallel import OneRank, mini_batches
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.randomness import seed_step
from buffer import Group, staleness
from buffer.versions import pack, unpack
from scripts.benches.staleness_cases.conditions import METHODS, Condition, Task
from scripts.benches.staleness_cases.sampling import Sampler, Weights, endless
from scripts.benches.staleness_cases.starting_model import make_model

CONFIG = Path("configs/tiny_cpu.yaml")
MAX_ROUNDS = 8
"""Times that dropped groups of one step are replaced by other prompts; then the step takes what there is."""
FAR = 1 << 20
"""Ordinals of held-out groups start here: their seeds are drawn from another stream anyway."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured: held-out answers a prompt at the end, and on the way (prompts, answers, every n steps)."""

    final_answers: int = 16
    curve_prompts: int = 64
    curve_answers: int = 2
    curve_every: int = 10


def configuration(chosen: Task, condition: Condition, seed: int, scratch: Path, extra: Sequence[str]) -> Config:
    """The run's configuration: configs/tiny_cpu.yaml, the task, the method, the seed, in this order."""
    home = scratch / chosen.name
    places = (
        f"model.path={home / 'model'}",
        f"data.train_files=[{home / 'train.parquet'}]",
        f"data.val_files=[{home / 'val.parquet'}]",
        f"run.seed={seed}",
    )
    return load(CONFIG, [*chosen.overrides, *METHODS[condition.method], *places, *extra]).config


class Experiment:
    """One condition with one seed, from the starter's model to the last held-out score."""

    def __init__(self, config: Config, chosen: Task, condition: Condition, sizes: Sizes = Sizes()) -> None:
        torch.set_num_threads(config.cluster.threads)
        make_model(config, chosen)
        assert config.starter is not None
        self._config, self._task, self._condition, self._sizes = config, chosen, condition, sizes
        self._algorithm = resolve(config.algorithm, config.actor, max_new_tokens=config.rollout.max_new_tokens)
        self._learner = Learner(
            Policy.load(
                config.model.path,
                self._algorithm,
                config.actor,
                arithmetic=config.model.dtype,
                temperature=config.rollout.temperature,
                steps=config.trainer.steps,
                wire_dtype=config.model.wire_dtype,
                ranks=OneRank(),
            )
        )
        self._sampler = Sampler(config)
        self._problems = endless(task.training(config.starter.task, config.starter.seed), config.run.seed)
        self._held_out = task.held_out(config.starter.task, config.starter.seed)
        self._ordinal = 0
        self._started = self._dropped = 0
        self._dropped_tokens = self._dropped_answers = 0

    def run(self) -> dict[str, Any]:
        """Train and score; returns what a line of the results holds."""
        begun, steps = time.process_time(), self._config.trainer.steps
        history: deque[Weights] = deque([self._weights()], maxlen=self._condition.eta + 1)
        curve, lines = [], []
        for step in range(steps):
            if step % self._sizes.curve_every == 0:
                score = self._score(history[-1], step, self._sizes.curve_answers, self._sizes.curve_prompts)
                curve.append((step, score))
            self._sampler.load(history[0], step - len(history) + 1)
            lines.append(self._train(self._sample(step - len(history) + 1, step), step))
            history.append(self._weights())
        answered = self._answered(history[-1], steps, self._sizes.final_answers, len(self._held_out))
        by_length = self._by_length(answered)
        final = round(statistics.fmean(t.reward or 0.0 for group in answered for t in group.trajectories), 5)
        return {
            "final": final,
            "by_length": by_length,
            "curve": [*curve, (steps, final)],
            "steps": lines,
            "started_groups": self._started,
            "dropped_groups": self._dropped,
            "dropped_response_length": self._dropped_tokens / max(self._dropped_answers, 1),
            "cpu_s": round(time.process_time() - begun, 1),
        }

    def _weights(self) -> Weights:
        wire = getattr(torch, self._config.model.wire_dtype)
        return {
            name: value.detach().to(wire, copy=True) for name, value in self._learner.policy.named_parameters().items()
        }

    def _sample(self, version: int, step: int) -> list[Group]:
        """A step's groups, sampled by `version`; under `drop` those that are late are replaced by other prompts."""
        wanted, kept = self._config.schedule.groups_per_step, list[Group]()
        for _ in range(MAX_ROUNDS):
            problems = [next(self._problems) for _ in range(wanted - len(kept))]
            groups = self._sampler.groups(problems, self._ordinal, self._config.rollout.n, "train")
            self._ordinal += len(groups)
            self._started += len(groups)
            kept += [group for group in groups if self._in_time(group, version)]
            if len(kept) == wanted:
                break
        return kept

    def _in_time(self, group: Group, version: int) -> bool:
        """Whether a group that starts at `version` is fresh when its longest answer ends (`staleness.on_stale`)."""
        lengths, per_version = (
            [trajectory.num_sampled for trajectory in group.trajectories],
            self._task.tokens_per_version,
        )
        if self._condition.policy == "wait" or per_version is None:
            return True
        if not staleness.stale({"": version}, version + max(lengths) // per_version, self._condition.eta):
            return True
        self._dropped += 1
        self._dropped_tokens += sum(lengths)
        self._dropped_answers += len(lengths)
        return False

    def _train(self, groups: list[Group], step: int) -> dict[str, float]:
        if not groups:
            return {"groups": 0.0}
        seed_step(self._config.run.seed, step)
        ordinals = [group.ordinal for group in groups]
        batch = batches.build(
            groups,
            mini_batches(ordinals, self._config.actor.ppo_mini_batches),
            filter_zero_variance=self._algorithm.filter_zero_variance,
            filter_overlong=self._algorithm.filter_overlong,
            lag_of=lambda version: step - unpack(version)[1],
            max_lag=self._condition.eta,
        )
        tally = self._learner.step(batch)
        measure(batch, tally)
        values = tally.values()
        by_lag = {name: value for name, value in values.items() if name.startswith("training/off_policy/lag_")}
        return {
            "groups": float(len(groups)),
            "reward": values["critic/score/mean"],
            "response_length": values["response_length/mean"],
            "lag": values.get("training/off_policy/lag/mean", 0.0),
            "grad_norm": values.get("actor/grad_norm", 0.0),
            "entropy": values.get("entropy", 0.0),
            # One lag a step, so that the value of any lag is the step's.
            "ess": next((value for name, value in by_lag.items() if name.endswith("/ess")), 1.0),
            "kl": next((value for name, value in by_lag.items() if name.endswith("/kl")), 0.0),
        }

    def _score(self, weights: Weights, version: int, answers: int, prompts: int) -> float:
        """Mean held-out reward of the first prompts."""
        groups = self._answered(weights, version, answers, prompts)
        score = held_out_score(scores(groups, len(groups), answers, pack(0, version)))
        assert score is not None
        return round(score, 5)

    def _answered(self, weights: Weights, version: int, answers: int, prompts: int) -> list[Group]:
        self._sampler.load(weights, version)
        return self._sampler.groups(self._held_out[:prompts], FAR * (version + 1), answers, "eval")

    def _by_length(self, groups: Sequence[Group]) -> dict[str, float]:
        """Mean held-out reward by the characters of the right answer."""
        found: dict[int, list[float]] = {}
        for problem, group in zip(self._held_out, groups, strict=True):
            rewards = [trajectory.reward or 0.0 for trajectory in group.trajectories]
            found.setdefault(len(problem.answer), []).append(statistics.fmean(rewards))
        return {str(length): round(statistics.fmean(means), 5) for length, means in sorted(found.items())}
