"""Check this machine for a run: packages, Redis, model, data, devices, ports, disk. Exit code 3: something is wrong."""

import argparse
import json

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.config import Config
from asyncrl.doctor import check, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, mode=True)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    return examine(load_from(args).config, as_json=args.json)


def examine(config: Config, *, as_json: bool) -> int:
    """Check, print, and say by the exit code whether the run could start."""
    findings = check(config)
    if as_json:
        print(json.dumps([{"name": f.name, "ok": f.ok, "detail": f.detail, "fix": f.fix} for f in findings]))
    else:
        print(render(findings))
    return 0 if all(finding.ok for finding in findings) else 3
