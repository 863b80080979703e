"""`asyncrl eval`: score a model directory on the held-out prompts, without Redis and without a trainer."""

import asyncio
import tempfile
from pathlib import Path

from asyncrl.config import Config
from asyncrl.envs.tools.catalogue import shared_tools
from asyncrl.errors import ConfigError
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.clients import make_client
from asyncrl.inference.protocol import vocab_size
from asyncrl.metrics.held_out import measure
from asyncrl.rollout.evaluation import Scores
from asyncrl.rollout.evaluation import evaluate as play
from asyncrl.run.rollout_parts import load_parts
from asyncrl.run.server_parts import server_name, started_server


def evaluate(config: Config, model_dir: Path | None) -> dict[str, float]:
    """Metrics of the answers under the trainer's names, and how many could not be scored or played.

    Raises:
        ConfigError: data.val_files is empty.
        ServerError: no answer could be had.
    """
    if not config.data.val_files:
        raise ConfigError("data.val_files is empty, so there is nothing to evaluate on. Name the held-out files there.")
    scores = asyncio.run(_evaluate(config, model_dir or config.model.path))
    return {
        **measure(scores.prompts, group_size=config.eval.n, pass_reward=config.eval.pass_reward),
        "response_length/mean": scores.mean_length,
        "num_unscored": float(scores.num_unscored),
        "num_failed": float(sum(scores.failed.values())),
    }


async def _evaluate(config: Config, model_dir: Path) -> Scores:
    if config.inference.urls:
        return await _play(config, model_dir, config.inference.urls)
    with tempfile.TemporaryDirectory(prefix="asyncrl-eval-") as scratch:
        server = started_server(config, server_name(0), 0, model_dir=model_dir, logs=Path(scratch))
        url = server.url()
        client = make_client(config.inference.engine, url, vocab_size=vocab_size(model_dir))
        try:
            await server.begin(url, Path(scratch), client)
            return await _play(config, model_dir, (url,))
        finally:
            await client.close()
            await server.end()


async def _play(config: Config, model_dir: Path, urls: tuple[str, ...]) -> Scores:
    parts = await load_parts(config, FixedBoard(urls), model_dir)
    assert parts.held_out is not None  # evaluate() checks the files
    try:
        await parts.rewards.start()
        await shared_tools(parts.resources, config.rollout.tools)
        await parts.fleet.refresh()
        return await play(parts.player, parts.held_out, slots=config.rollout.slots)
    finally:
        parts.rewards.close()
        await parts.rewards.close_connections()
        await parts.resources.close()
        await parts.fleet.close()
