"""`asyncrl gateway`: a worker whose episodes are played by harnesses over HTTP.

consumes  nothing: harnesses ask for prompts    waits for     the stop flag, a signal
produces  groups, as any worker of the run      unblocked by  `asyncrl stop`, the user
"""

import asyncio
import logging
import os
import socket
from dataclasses import replace

from asyncrl import waits
from asyncrl.config import Config, GatewayConfig
from asyncrl.data.template import TokenizerFiles
from asyncrl.envs.tools.parsers import find_parser
from asyncrl.inference.board import LogBoard
from asyncrl.load_config import LoadedConfig
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.rollout.worker import Worker
from asyncrl.run.collector import spare_what_lives_long
from asyncrl.run.connections import let_go, open_buffer, redis_url, weights_url
from asyncrl.run.gateway_key import gateway_key
from asyncrl.run.http_server import listen, serving, url_of
from asyncrl.run.identity import open_prompts, run_record
from asyncrl.run.open_files import allow_open_files
from asyncrl.run.reward_shares import limit_sharing
from asyncrl.run.rollout_parts import RolloutParts, make_parts
from asyncrl.run.rollout_worker import settings_of
from asyncrl.run.signals import stop_event
from buffer import ReplayBuffer
from weightsync import open_log

BEAT_S = 1.0
log = logging.getLogger(__name__)


def serve_gateway(loaded: LoadedConfig) -> int:
    """Run until the run is finished or stopped, or a signal; returns the exit code.

    Raises:
        PreflightError: the port is taken.
    """
    config = loaded.config
    allow_open_files(_connections(config.gateway))
    with _bound(config.gateway) as bound:
        chat = ChatTemplate.from_model_dir(config.model.path)
        record = run_record(config, open_prompts(config, chat)[0], chat)
        with redis_url(config) as url, open_buffer(config, url) as buffer:
            buffer.register(record)
            asyncio.run(_serve(config, url, buffer, bound))
    return 0


def _connections(config: GatewayConfig) -> int:
    """Files that may be open at once: a connection of each session's harness, one to a server for its turn, others."""
    return 2 * config.max_sessions + 512


def _bound(config: GatewayConfig) -> socket.socket:
    return listen(config.host, config.port, "gateway")


async def _serve(config: Config, url: str, buffer: ReplayBuffer, bound: socket.socket) -> None:
    hurry = asyncio.Event()
    stop = stop_event(at_once=let_go, hurry=hurry)
    mark = await waits.in_thread(buffer.stop_mark)
    name = f"gateway.{socket.gethostname()}.{os.getpid()}"
    board = LogBoard(open_log(weights_url(config, url), config.run.name))
    # A harness waits for its answer, and for nobody else's.
    parts = make_parts(config, board, config.model.path, batches=False)
    key, whence = gateway_key(config.run.directory)
    gateway = _gateway(config, parts, buffer, key, name)
    gateway.url = gateway.url or url_of(bound)
    await parts.rewards.start()
    await parts.teachers.ready(config.inference.start_timeout_s)
    spare_what_lives_long()
    worker = _worker(config, parts, buffer, gateway, name)
    gateway.why_none = worker.why_not_admitted
    try:
        async with serving(gateway.app, bound) as server:
            print(f"ready {gateway.url} (key: {whence})", flush=True)
            background = [
                asyncio.create_task(gateway.expire()),
                asyncio.create_task(_watch(buffer, mark, stop)),
                asyncio.create_task(_when_done(server, stop)),
            ]
            try:
                await worker.run(stop, hurry)
                await gateway.online.settle(config.cluster.stop_timeout_s / 4)
            finally:
                gateway.close()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
    finally:
        parts.rewards.close()
        await parts.rewards.close_connections()
        await parts.resources.close()
        await parts.teachers.close()


def _gateway(config: Config, parts: RolloutParts, buffer: ReplayBuffer, key: str, name: str) -> Gateway:
    templates = TokenizerFiles.read(config.model.path).templates
    _, parser = find_parser(config.rollout.tools.parser, "\n".join(templates.values()))
    return Gateway(
        config.gateway,
        key=key,
        chat=parts.chat,
        fleet=parts.fleet,
        sampling=parts.sampling,
        rewards=parts.rewards,
        parser=parser,
        buffer=buffer,
        group_size=config.rollout.n,
        streams=not config.inference.record_experts,  # they come with the whole of an answer
        max_trajectory_bytes=config.buffer.max_group_bytes // config.rollout.n,
        worker=name,
    )


def _worker(config: Config, parts: RolloutParts, buffer: ReplayBuffer, gateway: Gateway, name: str) -> Worker:
    settings = settings_of(config)
    # What a harness has begun nobody else can go on with.
    groups = replace(settings.groups, park_every_s=None, parks_when_given_back=False)
    return Worker(
        name=name,
        buffer=buffer,
        fleet=parts.fleet,
        player=gateway.player,
        teachers=parts.teachers,
        train=parts.train,
        held_out=parts.held_out,
        settings=replace(settings, slots=config.gateway.max_sessions, groups=groups),
        slots=gateway.demand,
        more_facts=gateway.facts,
        after_report=limit_sharing(config.rollout, buffer, name, parts.share),
    )


async def _watch(buffer: ReplayBuffer, mark: int, stop: asyncio.Event) -> None:
    """Stop when the run is asked to; a stop that was asked for before this start was for those who ran then."""
    while await waits.in_thread(buffer.stop_mark) == mark:
        await waits.pause("gateway's beat", BEAT_S)
    stop.set()


async def _when_done(server: "asyncio.Task[None]", stop: asyncio.Event) -> None:
    """A gateway that cannot be reached any more is of no use."""
    await asyncio.wait((server,))
    stop.set()
