"""Call one tool as an episode would: an instance, the call within its limits, its reward, the release.

Exit codes: 0 the tool answered; 1 the call failed, and the model would read why.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import harmless
from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.config import ToolsConfig
    from asyncrl.data.values import Json
    from asyncrl.envs.tools.calls import CallOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("tool", str, "name of the tool"))
    parser.add_argument("--arguments", default="{}", metavar="JSON", help="what the model would write, an object")
    parser.add_argument(
        "--create-kwargs", default="{}", metavar="JSON", help="what the row's tools_kwargs would have, an object"
    )
    parser.add_argument("--json", action="store_true", help="print outcome, text, rewards and metrics as JSON")


def run(args: argparse.Namespace) -> int:
    """Call and print."""
    config = load_from(args).config
    arguments, create = _object("--arguments", args.arguments), _object("--create-kwargs", args.create_kwargs)
    outcome, reward = asyncio.run(_call(config.rollout.tools, args.tool, arguments, create))
    if args.json:
        shown = {"outcome": outcome.outcome, "text": outcome.content, "reward": outcome.reward}
        print(json.dumps({**shown, "metrics": dict(outcome.metrics), "calc_reward": reward}))
    else:
        print(harmless(outcome.content))
        for name, value in (("reward", outcome.reward), ("calc_reward", reward)):
            if value is not None:
                print(f"{name}: {value:g}", file=sys.stderr)
    return 0 if outcome.outcome == "ok" else 1


async def _call(
    config: "ToolsConfig", name: str, arguments: "dict[str, Json]", create: "dict[str, Json]"
) -> "tuple[CallOutcome, float | None]":
    from asyncrl.envs.tools.catalogue import load_tools
    from asyncrl.envs.tools.parsers import ToolCall
    from asyncrl.envs.tools.running import ToolRunner

    async with await load_tools(config) as catalogue:
        runner = ToolRunner(catalogue.tools, config, Counter())
        session = runner.session({"tools_kwargs": {name: {"create_kwargs": create}}})
        try:
            (outcome,) = await session.answer([ToolCall(name, arguments)])
            rewards = await session.calc_rewards()
        finally:
            await session.close()
            await runner.close()
    return outcome, rewards.get(name)


def _object(option: str, text: str) -> "dict[str, Json]":
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'{option} must be a JSON object, as in \'{{"expr": "1+1"}}\'.')
    return value
