"""Train: lease groups from the buffer, update the policy, publish weight versions.

Exit codes: 0 finished or stopped on request (go on with --resume), 2 configuration or data, 3 Redis or machine,
5 checkpoint, 6 non-finite numbers, 7 a newer trainer owns the run, 75 waited too long for groups (start again with
--resume).
"""

import argparse
import sys

from asyncrl.commands.config_arguments import add_config_arguments, load_from, look, make_missing
from asyncrl.doctor.sampling import check_sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, mode=True, starts=True)
    parser.add_argument("--resume", action="store_true", help="go on from the newest complete checkpoint of the run")


def run(args: argparse.Namespace) -> int:
    """Run the trainer cluster to its end."""
    loaded = load_from(args)
    looked = look(args, loaded)
    if looked is not None:
        return looked
    for finding in check_sampling(loaded.config):
        if finding.fix:  # a bias that no metric shows
            print(f"note: {finding.detail}. {finding.fix}", file=sys.stderr)
    make_missing(loaded.config)
    from asyncrl.run.train import train

    return train(loaded, resume=args.resume)
