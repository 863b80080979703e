"""Score a model directory on the held-out prompts, on servers that this command starts or adopts."""

import argparse
import json
from pathlib import Path

from asyncrl.commands.config_arguments import add_config_arguments, load_from, make_missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument(
        "--model", type=Path, help="model directory to score, for example RUN/export; default: model.path"
    )
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the metrics."""
    config = load_from(args).config
    make_missing(config)
    from asyncrl.run.evaluate import evaluate

    scores = evaluate(config, args.model)
    print(json.dumps(scores) if args.json else "\n".join(f"{name}  {value:.4f}" for name, value in scores.items()))
    return 0
