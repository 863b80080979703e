"""`asyncrl serve-rollout`: the supervisor of the rollout cluster on one machine.

consumes  servers that are added or removed              waits for     the stop flag, a signal, a child that ends
produces  running hosts and workers                      unblocked by  their exits; a preemption notice

Prompts are no concern of it: workers reserve them themselves.
"""

import asyncio
import logging
import time

from asyncrl import waits
from asyncrl.cluster import Wanted
from asyncrl.config import Config
from asyncrl.envs.lookup import find_environment
from asyncrl.load_config import LoadedConfig
from asyncrl.metrics.console import RunView
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.run.adoptions import Adoptions
from asyncrl.run.connections import let_go, open_buffer, redis_url, weights_url
from asyncrl.run.handover import write_config
from asyncrl.run.identity import open_prompts, run_record
from asyncrl.run.machines import open_cluster
from asyncrl.run.machines import place as find_room
from asyncrl.run.places import own_place
from asyncrl.run.preemption import watch_for_notice
from asyncrl.run.rollout_side import RolloutSide
from asyncrl.run.signals import stop_event
from asyncrl.run.teacher_places import with_addresses
from buffer import ReplayBuffer
from weightsync import open_log

BEAT_S = 0.5
log = logging.getLogger(__name__)


def serve_rollout(loaded: LoadedConfig) -> int:
    """Run until the run is finished or stopped, or a signal; returns the exit code."""
    config = loaded.config
    find_environment(config.rollout.environment)  # one message here, instead of one from each worker that starts
    chat = ChatTemplate.from_model_dir(config.model.path)
    record = run_record(config, open_prompts(config, chat)[0], chat)
    with redis_url(config) as url, open_buffer(config, url) as buffer:
        buffer.register(record)
        with own_place(config.run.directory) as place:
            return asyncio.run(_supervise(config, url, buffer, place))


async def _supervise(config: Config, url: str, buffer: ReplayBuffer, place: int) -> int:
    directory = config.run.directory / (f"rollout-{place}" if place else "rollout")
    cluster = open_cluster(config, directory, url)
    as_given = config
    config, teachers = with_addresses(config)
    wanted = Wanted(
        servers=config.inference.servers + len(teachers), tp=config.inference.tp, workers=config.rollout.workers
    )
    hurry = asyncio.Event()

    def leave() -> None:
        cluster.kill()
        let_go()

    stop = stop_event(at_once=leave, hurry=hurry)  # after Ray's own handlers
    try:
        placement = await find_room(cluster, wanted, as_given, url, stop)
        if placement is None:
            return 0
        config_file = write_config(config, directory / "config.json")
        side = RolloutSide(config, cluster, config_file, placement, teachers, place=place)
        adoptions = Adoptions(open_log(weights_url(config, url), config.run.name), side)
        noticing = asyncio.create_task(watch_for_notice(config.inference.preemption, stop, hurry))
        try:
            await _watch(config, buffer, side, adoptions, stop, hurry)
        finally:
            noticing.cancel()
    finally:
        cluster.kill()
    return 0


async def _watch(
    config: Config,
    buffer: ReplayBuffer,
    side: RolloutSide,
    adoptions: Adoptions,
    stop: asyncio.Event,
    hurry: asyncio.Event,
) -> None:
    """Keep the side running until the run is finished or stopped, then stop it."""
    # A stop that was asked for before this start was for those who ran then; the next trainer takes it back.
    mark = await waits.in_thread(buffer.stop_mark)
    side.start()
    with RunView(f"{config.run.name}: rollout") as view:
        while not stop.is_set() and await waits.in_thread(buffer.stop_mark) == mark:
            for event in (*side.tend(), *await adoptions.tend()):
                view.message(event)
            view.update(await waits.in_thread(buffer.reports))
            await waits.pause("rollout supervisor's beat", BEAT_S)
        view.message("stopping: groups in flight are finished, or parked and given back")
        start_s = time.monotonic()
        parked_s = await side.stop(hurry)
        took_s = time.monotonic() - start_s
        view.message(f"groups were finished or parked after {parked_s:.1f} s, servers had ended after {took_s:.1f} s")
