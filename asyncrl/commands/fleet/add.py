"""Have a run adopt a server that somebody started, SGLang or ours: it joins as soon as it holds head.

The serve-rollout that runs on the server's machine starts a host for it, which keeps its weights current. With
rollout.workers=0 and inference.servers=0 a serve-rollout does nothing else.
"""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("url", str, "where the server answers: http://host:port"))
    parser.add_argument("--name", default="", help="its name in the run; default: machine-added-port")
    parser.add_argument("--machine", default="", help="host name of its machine; default: this one's")


def run(args: argparse.Namespace) -> int:
    """Ask for the adoption."""
    from asyncrl.run.fleet_orders import add, open_fleet

    config = load_from(args).config
    with open_fleet(config) as log:
        name, started_with = add(log, config, args.url, name=args.name, machine=args.machine)
    print(f"{name} is to be adopted. It must have been started with {started_with}; `asyncrl fleet list` shows it")
    return 0
