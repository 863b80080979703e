"""The process of one rollout worker: make its parts, play until it is asked to stop."""

import argparse
import asyncio
import os

from asyncrl.config import Config
from asyncrl.config.dynamic_sampling import filters_zero_variance
from asyncrl.envs.tools.catalogue import shared_tools
from asyncrl.inference.board import LogBoard
from asyncrl.report.rollout_facts import SCORERS
from asyncrl.report.scorers import as_fact
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.worker import Worker, WorkerSettings
from asyncrl.run.collector import spare_what_lives_long
from asyncrl.run.connections import URL, open_buffer, weights_url
from asyncrl.run.handover import read_config
from asyncrl.run.reward_shares import limit_sharing
from asyncrl.run.rollout_parts import load_parts
from asyncrl.run.signals import stop_event
from weightsync import open_log


def main(args: argparse.Namespace) -> int:
    """Entry of the role."""
    asyncio.run(_play(read_config(args.config), f"worker-{args.index}.{os.getpid()}"))
    return 0


async def _play(config: Config, name: str) -> None:
    url = os.environ[URL]
    hurry = asyncio.Event()
    stop = stop_event(hurry=hurry)
    with open_buffer(config, url) as buffer:
        board = LogBoard(open_log(weights_url(config, url), config.run.name))
        parts = await load_parts(config, board, config.model.path)
        try:
            await parts.rewards.start()
            await parts.teachers.ready(config.inference.start_timeout_s)
            worker = Worker(
                name=name,
                buffer=buffer,
                fleet=parts.fleet,
                player=parts.player,
                teachers=parts.teachers,
                train=parts.train,
                held_out=parts.held_out,
                settings=settings_of(config),
                more_facts=lambda: {SCORERS: as_fact(parts.rewards.calls)},
                after_report=limit_sharing(config.rollout, buffer, name, parts.share),
            )
            await shared_tools(parts.resources, config.rollout.tools)  # what cannot be loaded ends all of it
            spare_what_lives_long()
            await worker.run(stop, hurry)
        finally:
            parts.rewards.close()
            await parts.rewards.close_connections()
            await parts.resources.close()
            await parts.teachers.close()


def settings_of(config: Config) -> WorkerSettings:
    """The bounds of a worker of this run."""
    partials, stop_s = config.rollout.partials, config.cluster.stop_timeout_s
    return WorkerSettings(
        slots=config.rollout.slots,
        groups=GroupSettings(
            renew_every_s=config.buffer.renew_every_s,
            park_every_s=partials.interval_s,
            parks_when_given_back=partials.on_stop,
            cut_timeout_s=stop_s / 8,
            filters_zero_variance=filters_zero_variance(config.algorithm),
            pass_reward=config.data.curriculum.pass_reward,
        ),
        # What is left after both is for giving back and leaving.
        stop_timeout_s=stop_s / 2,
        park_timeout_s=stop_s / 4,
        sweep_every_s=config.buffer.claim_s / 2,
    )
