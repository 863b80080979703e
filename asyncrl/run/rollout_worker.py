"""The process of one rollout worker: make its parts, play until it is asked to stop."""

import argparse
import asyncio
import os

from asyncrl.config import Config
from asyncrl.inference.board import LogBoard
from asyncrl.rollout.worker import Worker, WorkerSettings
from asyncrl.run.connections import URL, open_buffer
from asyncrl.run.handover import read_config
from asyncrl.run.rollout_parts import make_parts
from asyncrl.run.signals import stop_event
from weightsync import open_log


def main(args: argparse.Namespace) -> int:
    """Entry of the role."""
    asyncio.run(_play(read_config(args.config), f"worker-{args.index}.{os.getpid()}"))
    return 0


async def _play(config: Config, name: str) -> None:
    url = os.environ[URL]
    stop = stop_event()
    with open_buffer(config, url) as buffer:
        parts = make_parts(config, LogBoard(open_log(url, config.run.name)), config.model.path)
        await parts.rewards.start()
        worker = Worker(
            name=name,
            buffer=buffer,
            fleet=parts.fleet,
            player=parts.player,
            train=parts.train,
            held_out=parts.held_out,
            settings=WorkerSettings(
                slots=config.rollout.slots,
                renew_every_s=config.buffer.renew_every_s,
                stop_timeout_s=config.cluster.stop_timeout_s / 2,  # the rest is for giving back and leaving
                sweep_every_s=config.buffer.claim_s / 2,
            ),
        )
        try:
            await worker.run(stop)
        finally:
            parts.rewards.close()
