"""A trainer of one rank with every real part, over a buffer in memory and a log of versions in a directory."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.algorithms import resolve
from asyncrl.config import (
    ActorConfig,
    AlgorithmConfig,
    CheckpointConfig,
    Config,
    CriticConfig,
    EvalConfig,
    LoraConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    ScheduleConfig,
    TrainerConfig,
)
from asyncrl.run.trainer_rank import all_shards, load_critic
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.gpus import DedicatedGpus
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.loop import Outcome, TrainerParts, TrainingLoop
from asyncrl.trainer.parallel import OneRank, Ranks
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.served import open_served
from buffer import BufferConfig, ReplayBuffer, StalenessConfig
from tests.support.rollout_thread import RolloutThread
from tests.support.tiny_policy import LOADING
from weightsync.config import WeightsyncConfig
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.transport import open_transport

GROUP_SIZE = 4
BUFFER = BufferConfig(max_bytes=64 << 20, max_group_bytes=1 << 20)


def make_config(directory: Path, model_dir: Path, *, mode: str = "separate_async", **sections: dict) -> Config:
    """A small run of 4 groups a step; `sections` change single keys of a section."""

    def section(kind, name, **own):
        return kind(**{**own, **sections.get(name, {})})

    return Config(
        mode=mode,
        run=RunConfig(name="toy", dir=directory, seed=7),
        model=ModelConfig(path=model_dir),
        schedule=section(ScheduleConfig, "schedule", groups_per_step=4),
        staleness=section(StalenessConfig, "staleness"),
        buffer=section(BufferConfig, "buffer", **BUFFER.model_dump()),
        rollout=RolloutConfig(n=GROUP_SIZE, max_new_tokens=8),
        weightsync=WeightsyncConfig(directory=str(directory / "parts")),
        algorithm=section(AlgorithmConfig, "algorithm"),
        actor=section(ActorConfig, "actor", lr=1e-3),
        lora=section(LoraConfig, "lora"),
        critic=section(CriticConfig, "critic", lr=1e-3),
        trainer=TrainerConfig(
            **{
                "steps": 4,
                "device": "cpu",
                "lease_wait_s": 20.0,
                "checkpoint": CheckpointConfig(every_steps=2, keep_last=10),
                **sections.get("trainer", {}),
            }
        ),
        eval=section(EvalConfig, "eval", n=2, deadline_s=20.0),
    )


@dataclass
class Lines:
    """A sink that keeps what it is given."""

    lines: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)

    def write(self, step, branch, values):
        self.lines.append((step, branch, dict(values)))

    def close(self):
        """Nothing to finish."""

    def reproducible(self) -> list[tuple[int, int, dict[str, float]]]:
        """The lines without what the clock decides."""
        clock = ("timing_s/", "perf/", "buffer/age_s")
        return [(s, b, {k: v for k, v in values.items() if not k.startswith(clock)}) for s, b, values in self.lines]


@dataclass
class Run:
    """The parts of one trainer process and what it wrote."""

    parts: TrainerParts
    sink: Lines

    def loop(self) -> TrainingLoop:
        """The loop, for those who look at it from beside."""
        return TrainingLoop(self.parts)

    def go(
        self, *, resume: bool = False, stop: threading.Event | None = None, loop: TrainingLoop | None = None
    ) -> Outcome:
        """Run the loop to its end."""
        return asyncio.run((loop or self.loop()).run(resume=resume, stop=stop or threading.Event()))


def make_buffer(config: Config, run: str = "toy") -> ReplayBuffer:
    """A buffer in memory."""
    return ReplayBuffer.in_memory(run, config.buffer, config.staleness)


def start_trainer(
    config: Config, buffer: ReplayBuffer, *, heldout: int = 0, ranks: Ranks | None = None, url: str = ""
) -> Run:
    """A trainer process as it starts: nothing in its memory but what it reads. With `url` its log is in that Redis."""
    ranks, directory = ranks or OneRank(), config.run.directory
    algorithm = resolve(config.algorithm, config.actor, max_new_tokens=config.rollout.max_new_tokens)
    manifest = Manifest.from_model_dir(config.model.path, config.model.wire_dtype)
    with LOADING:
        policy = Policy.load(
            config.model.path,
            algorithm,
            config.actor,
            arithmetic=config.model.dtype,
            temperature=config.rollout.temperature,
            steps=config.trainer.steps,
            wire_dtype=manifest.dtypes,
            ranks=ranks,
            lora=config.lora,
            seed=config.run.seed,
        )
        critic = load_critic(config, algorithm, ranks)
    log = open_log(url or str(directory / "log"), "toy")
    served = open_served(config, policy, manifest, ranks)
    publisher = WeightPublisher(
        served.manifest,
        all_shards(policy, served),
        log,
        open_transport(config.weightsync, "", "toy"),
        config.weightsync,
        ranks.channel(60.0),
    )
    sink = Lines()
    parts = TrainerParts(
        config=config,
        buffer=buffer,
        publisher=publisher,
        log=log,
        learner=Learner(policy, critic),
        gpus=DedicatedGpus(),
        sinks=[sink],
        checkpoints=Checkpoints(directory / "checkpoints", config.trainer.checkpoint),
        collective=ranks,
        run_dir=directory,
        origin_dir=served.directory,
        heldout=heldout,
    )
    return Run(parts, sink)


def with_servers(log: VersionLog, *names: str) -> None:
    """Servers in the log as hosts would put them there; they say nothing of versions, and nobody asks them."""
    for name in names:
        log.register(name, "first", f"http://{name}", 3600.0)
        log.put_state(name, "first", "serving")


def rollout_for(run: Run, **settings) -> RolloutThread:
    """A rollout thread for that trainer's buffer and log."""
    parts = run.parts
    return RolloutThread(parts.buffer, parts.log, parts.config.model.path, GROUP_SIZE, **settings)
