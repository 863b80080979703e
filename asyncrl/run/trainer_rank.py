"""The process of one trainer rank: make its parts, run the loop, leave the outcome."""

import argparse
import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from asyncrl.algorithms import Algorithm, resolve
from asyncrl.config import Config
from asyncrl.inference.sharing import SharedGpus
from asyncrl.metrics.sinks import open_sinks
from asyncrl.run.connections import URL, open_buffer, open_weights
from asyncrl.run.grace import Grace, give_back
from asyncrl.run.handover import read_config
from asyncrl.run.last_version import handed_over
from asyncrl.run.outcome import Ended, clear_outcome, write_outcome
from asyncrl.run.saved import directory as checkpoints_of
from asyncrl.run.signals import PREEMPTED
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.columns import needs_critic
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.gpus import DedicatedGpus, Gpus
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.loop import Outcome, TrainerParts, TrainingLoop
from asyncrl.trainer.parallel import START_TIMEOUT_S, OneRank, ProcessGroup, Ranks, open_ranks
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.served import Served, open_served
from asyncrl.trainer.teacher_scores import require_teachers
from buffer import label
from weightsync import Manifest, VersionLog
from weightsync.adapter_layout import BASE
from weightsync.publisher import WeightPublisher
from weightsync.shard import LocalShard, untrained_shards
from weightsync.warm import compile_kernels

logger = logging.getLogger(__name__)


def main(args: argparse.Namespace) -> int:
    """Entry of the role."""
    config = read_config(args.config)
    torch.set_num_threads(config.cluster.threads)
    stop = threading.Event()
    signal.signal(PREEMPTED, signal.SIG_IGN)  # the supervisor decides what becomes of it
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    ranks = open_ranks(config)
    run_dir = config.run.directory
    if ranks.rank == 0:
        clear_outcome(run_dir)
    try:
        outcome = asyncio.run(_train(config, ranks, args.held_out, resume=args.resume, stop=stop))
        if ranks.rank == 0:  # before the close, in which a rank may hang, or lose one that crashes as it leaves
            ended = Ended(outcome.reason, outcome.ended_by, outcome.step, label(outcome.version))
            write_outcome(run_dir, ended)
    finally:
        if isinstance(ranks, ProcessGroup):
            ranks.close()
    return 0


async def _train(
    config: Config, ranks: OneRank | ProcessGroup, held_out: int, *, resume: bool, stop: threading.Event
) -> Outcome:
    url, run_dir = os.environ[URL], config.run.directory
    algorithm = resolve(config.algorithm, config.actor, max_new_tokens=config.rollout.max_new_tokens)
    require_teachers(algorithm, {teacher.name: teacher.top_k for teacher in config.teachers})
    manifest = Manifest.from_model_dir(config.model.path, config.model.wire_dtype)
    policy = Policy.load(
        config.model.path,
        algorithm,
        config.actor,
        arithmetic=config.model.dtype,
        offload_reference=config.model.offload_reference,
        lora=config.lora,
        seed=config.run.seed,
        temperature=config.rollout.temperature,
        steps=config.trainer.steps - config.critic.steps_before_policy,
        wire_dtype=manifest.dtypes,
        ranks=ranks,
        engine=config.trainer.engine,
    )
    served = open_served(config, policy, manifest, ranks)
    # Beside the first prompts: the first version with changes would wait for it.
    widths = sorted({spec.width for spec in served.manifest.tensors})
    bucket_words = min(config.weightsync.bucket_words, served.manifest.num_words)
    threading.Thread(target=compile_kernels, args=(widths, bucket_words), daemon=True, name="compile kernels").start()
    log, transport = open_weights(config, url)
    channel = ranks.channel(patience_of_publishing(config))
    publisher = WeightPublisher(served.manifest, all_shards(policy, served), log, transport, config.weightsync, channel)
    settings = config.model_dump(mode="json", exclude={"buffer": {"url"}, "weightsync": {"key"}})
    sinks = open_sinks(config.metrics, run_dir, config.run.name, settings) if ranks.rank == 0 else []
    with open_buffer(config, url) as buffer:
        parts = TrainerParts(
            config=config,
            buffer=buffer,
            publisher=publisher,
            origin_dir=served.directory,
            log=log,
            learner=Learner(policy, load_critic(config, algorithm, ranks)),
            gpus=_gpus(config, log, ranks.rank),
            sinks=sinks,
            checkpoints=Checkpoints(checkpoints_of(config), config.trainer.checkpoint, lambda: anchors_of(log)),
            collective=ranks,
            run_dir=run_dir,
            heldout=held_out,
        )
        try:
            loop = TrainingLoop(parts)
            giving = partial(give_back, run_dir, buffer, loop.at_hand) if ranks.rank == 0 else None
            with Grace(stop, config.trainer.stop_grace_s, giving, loop.at_hand):
                outcome = await loop.run(resume=resume, stop=stop)
            if outcome.reason == "finished":
                await handed_over(log, transport)
            return outcome
        finally:
            for sink in sinks:
                sink.close()


def load_critic(config: Config, algorithm: Algorithm, ranks: Ranks) -> Critic | None:
    """The algorithm's critic as it is before the first step, or None if the algorithm has none."""
    if not needs_critic(algorithm):
        return None
    return Critic.load(
        config.model.path,
        algorithm,
        config.critic,
        config.actor,
        arithmetic=config.model.dtype,
        steps=config.trainer.steps,
        ranks=ranks,
        engine=config.trainer.engine,
    )


def patience_of_publishing(config: Config) -> float:
    """Seconds that a rank may wait for the others while they publish or read the log: every call of theirs ends."""
    return START_TIMEOUT_S + config.weightsync.stage_deadline_s + 2 * config.weightsync.publish_deadline_s


def all_shards(policy: Policy, served: Served) -> Callable[[], list[LocalShard]]:
    """What this rank holds now, and what servers begin from and the policy does not have, which never changes."""
    untrained = untrained_shards(served.directory, served.manifest, {shard.name for shard in policy.shards()})
    if names := [shard.name for shard in untrained if shard.name != BASE]:
        logger.warning("not trained, and served as they are in %s: %s", served.directory, names)
    return lambda: [*policy.shards(), *untrained]


def _gpus(config: Config, log: VersionLog, rank: int) -> Gpus:
    if not config.plan.lends or rank != 0:
        return DedicatedGpus()
    return SharedGpus(log, deadline_s=config.inference.start_timeout_s)


def anchors_of(log: VersionLog) -> list[Path]:
    """Directories that records of the log name as anchors: a server that joins late reads them."""
    return [Path(record.model_dir) for record in log.records() if record.model_dir]
