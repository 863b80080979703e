"""List the checkpoints of a run, verify every byte of them, or export one. Exit code 5 if a checkpoint is damaged."""

import argparse
import json

from asyncrl.commands import export
from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=("list", "verify", "export"))
    add_config_arguments(parser)
    export.add_choice(parser, "(export)")


def run(args: argparse.Namespace) -> int:
    """List, verify or export."""
    if args.action == "export":
        return export.run(args)
    from asyncrl.run.saved import describe_checkpoints

    rows = describe_checkpoints(load_from(args).config, verify=args.action == "verify")
    print(json.dumps(rows) if args.json else table(rows))
    return 5 if any(str(row["state"]).startswith("damaged") for row in rows) else 0


def table(rows: list[dict[str, str | float | None]]) -> str:
    """The rows for people, newest first."""
    lines = [
        f"{row['path']}  step {row['step']}  version {row['version']}  {_size(row['bytes'])} of {row['world'] or '?'} "
        f"ranks  {_age(row['age_s'])} old  score {_score(row['score'])}  {row['state']}"
        for row in rows
    ]
    return "\n".join(lines) or "no checkpoints"


def _size(num_bytes: str | float | None) -> str:
    return "? bytes" if num_bytes is None else f"{float(num_bytes) / 1e6:.1f} MB"


def _age(age_s: str | float | None) -> str:
    seconds = float(age_s or 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _score(score: str | float | None) -> str:
    return "none" if score is None else f"{float(score):.4g}"
