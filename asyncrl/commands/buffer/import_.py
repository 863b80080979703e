"""Play the groups of a file that `export` wrote into the buffer of a run, in the order of the file.

Each takes the next ordinal that admission grants, as a worker's would; where the window is full it waits for the
trainer. The trainer trains only on tokens of weights that it knows: groups of other runs need --restamp, which says
that all their tokens were sampled under the newest published version (their logprobs stay what they were, and
extra_info.restamped keeps the true versions).

Exit codes: 0 all are in; 1 some were refused, stale on arrival or too large; 2 the file is not one of groups, or of
another tokenizer or group size; 75 admission was closed: --skip goes on from there.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.errors import WaitTimeout

if TYPE_CHECKING:  # pyarrow takes a third of a second to import
    from asyncrl.run.import_groups import ImportReport

MOST_REFUSED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("file", Path, "parquet file of groups"))
    parser.add_argument("--restamp", action="store_true", help="put all tokens under the newest published version")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave the first N groups of the file out")
    parser.add_argument("--first", type=int, metavar="N", help="import at most N groups")
    parser.add_argument("--no-wait", action="store_true", help="stop where a worker would wait for admission")
    parser.add_argument(
        "--deadline", type=float, default=600.0, metavar="S", help="longest wait of one group, in seconds (default 600)"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(args: argparse.Namespace) -> int:
    """Import."""
    from asyncrl.data.group_files import GroupFile
    from asyncrl.run.connections import weights_url
    from asyncrl.run.existing import open_existing
    from asyncrl.run.import_groups import Import, ImportSettings
    from weightsync import open_log

    config = load_from(args).config
    file = GroupFile(args.file)
    settings = ImportSettings(
        wait_s=args.deadline,
        renew_every_s=config.buffer.renew_every_s,
        restamp=args.restamp,
        skip=args.skip,
        first=args.first,
        no_wait=args.no_wait,
    )
    with open_existing(config) as (buffer, url):
        log = open_log(weights_url(config, url), config.run.name)
        try:
            importing = Import(buffer, log, file, settings, lambda line: print(line, file=sys.stderr))
            try:
                asyncio.run(importing.run())
            except WaitTimeout as late:
                print(f"asyncrl buffer import: {late}", file=sys.stderr)
            finally:
                report = importing.report
                print(json.dumps({"file": str(args.file), **report.to_json()}) if args.json else render(args, report))
        finally:
            log.close()
    return WaitTimeout.exit_code if report.stopped_by else int(report.num_lost > 0)


def render(args: argparse.Namespace, report: "ImportReport") -> str:
    """The outcome for people."""
    lines = [f"refused: group {one['gid']}: {one['found']}" for one in report.refused[:MOST_REFUSED]]
    if len(report.refused) > MOST_REFUSED:
        lines.append(f"refused: {len(report.refused) - MOST_REFUSED} more, see --json")
    if report.refused:
        lines.append("--restamp imports groups of weights that the run never published")
    counted = ", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.items()) or "none is in"
    lines.append(f"{args.file}: {report.num_groups} groups: {counted}; {len(report.refused)} refused")
    if report.stopped_by:
        lines.append(f"stopped: {report.stopped_by}\n--skip {report.next_group} goes on from there")
    return "\n".join(lines)
