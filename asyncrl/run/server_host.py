"""The process of one host: make its parts, look after its server until it is asked to stop."""

import argparse
import asyncio
import os
from pathlib import Path

from asyncrl.config import Config
from asyncrl.inference.activation import Pausing
from asyncrl.inference.clients import make_client
from asyncrl.inference.host import Host, HostSettings
from asyncrl.inference.protocol import vocab_size
from asyncrl.inference.server import ManagedServer
from asyncrl.inference.stage_dir import StageDir
from asyncrl.run.connections import URL, open_buffer, open_weights
from asyncrl.run.handover import read_config
from asyncrl.run.server_parts import adopted_server, server_name, started_server
from asyncrl.run.signals import stop_event
from weightsync import Receiver
from weightsync.adapter_receiver import AdapterReceiver

RENEWALS_PER_LEASE = 4  # one lost renewal must not take a living server out of rotation


def main(args: argparse.Namespace) -> int:
    """Entry of the role."""
    kind = "adopted" if args.url else "lent" if args.lent else "server"
    name = args.name or server_name(args.index, kind=kind, place=args.place)
    asyncio.run(_look_after(read_config(args.config), name, args.index, args.url, lent=args.lent))
    return 0


async def _look_after(config: Config, name: str, index: int, adopted_url: str, *, lent: bool) -> None:
    """`lent`: on devices of a trainer that has its own; where they are shared every server is."""
    url, stop = os.environ[URL], stop_event(heeds_preemption=False)
    log, transport = open_weights(config, url)
    vocabulary = vocab_size(config.model.path)

    server: ManagedServer
    if adopted_url:
        server, stage = (
            adopted_server(config, name, adopted_url),
            StageDir.of_adopted(config.weightsync.stage_dir, config.run.directory, name),
        )
    else:
        logs = config.run.directory / "rollout"
        server = started_server(config, name, index, model_dir=config.model.path, logs=logs, lent=lent)
        stage = StageDir.of_started(config.weightsync.stage_dir, config.run.directory, name)

    adds_adapter = config.lora.rank > 0 and config.lora.sync == "adapter"

    def make_receiver(incarnation: str, server_url: str, stage_dir: Path) -> Receiver:
        return (AdapterReceiver if adds_adapter else Receiver)(
            log,
            transport,
            config.weightsync,
            server=name,
            incarnation=incarnation,
            url=server_url,
            stage_dir=stage_dir,
            model_dir=config.model.path,
            shared_dir=stage.shared,
            lent=lent or config.plan.shares_gpus,
        )

    with open_buffer(config, url) as buffer:
        host = Host(
            server,
            stage=stage,
            make_client=lambda address: make_client(config.inference.engine, address, vocab_size=vocabulary),
            make_receiver=make_receiver,
            pausing=Pausing(
                kv=config.weightsync.kv,
                num_ranks=config.inference.tp,
                deadline_s=config.weightsync.activate_deadline_s,
            ),
            settings=HostSettings(
                max_restarts=config.inference.max_restarts,
                renew_every_s=min(2.0, config.weightsync.ack_lease_s / RENEWALS_PER_LEASE),
                forgiven_s=config.inference.restarts_forgiven_s,
            ),
            report=buffer.report,
        )
        await host.run(stop)
