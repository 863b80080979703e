"""The process of one teacher that this machine serves: a server whose weights stay as they are, until it is stopped.

It has no host and acknowledges nothing, so the policy's fleet never sees it. Workers know its address from the
configuration that they are given.
"""

import argparse
import asyncio
from pathlib import Path

from asyncrl.config import Config
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.protocol import vocab_size
from asyncrl.run.handover import read_config
from asyncrl.run.server_parts import teacher_server
from asyncrl.run.signals import stop_event


def main(args: argparse.Namespace) -> int:
    """Entry of the role: `--index` is the teacher's number, `--url` its address, `--model` its directory."""
    asyncio.run(_serve(read_config(args.config), args.index, args.url, args.model))
    return 0


async def _serve(config: Config, index: int, url: str, model_dir: Path) -> None:
    stop = stop_event(heeds_preemption=False)
    logs = config.run.directory / "rollout"
    server = teacher_server(config, index, url, model_dir=model_dir, logs=logs)
    client = ServerClient(url, vocab_size=vocab_size(model_dir))
    try:
        await server.begin(url, logs / f"{server.name}.stage", client)
        ended, stopping = asyncio.create_task(server.ended()), asyncio.create_task(stop.wait())
        done, pending = await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if ended in done and not stop.is_set():
            raise ServerUnavailable(f"{server.name} ended with exit code {ended.result()}; see {logs}")
    finally:
        await client.close()
        await server.end()
