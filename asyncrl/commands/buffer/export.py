"""Write the groups that the buffer holds to a parquet file, one row per trajectory, for people and for `import`.

Columns: who (gid, ordinal, attempt, trajectory, state, data_source), what came of it (reward, reward_error,
reward_parts, finish_reason, num_turns, num_tokens, num_sampled), how old (lag, age_s), why it died (reason, error), and
`rows`: token ids, mask, logprobs, spans (version and digest of the weights), further columns; with --text also text.
The run goes on meanwhile; a group that leaves in between is left out and counted.

Exit codes: 0 written; 1 written, but payloads of groups were missing or damaged: they are listed; 2 the file exists or
cannot be written.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.commands.buffer.text import texts_of
from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import listed
from asyncrl.config import Config
from asyncrl.errors import DataError
from buffer import ReplayBuffer
from buffer.operator_side import WITH_PAYLOAD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("file", Path, "parquet file to write"))
    parser.add_argument(
        "--state", type=states, default=WITH_PAYLOAD, help=f"of {','.join(WITH_PAYLOAD)}, with commas; default: all"
    )
    parser.add_argument("--first", type=int, metavar="N", help="at most N groups, the smallest ordinals")
    parser.add_argument(
        "--text", action="store_true", help="a column with the text of all tokens, by the run's tokenizer"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def states(text: str) -> tuple[str, ...]:
    """States named with commas."""
    named = tuple(part.strip() for part in text.split(","))
    if unknown := [name for name in named if name not in WITH_PAYLOAD]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: only {', '.join(WITH_PAYLOAD)} have a payload")
    return named


def run(args: argparse.Namespace) -> int:
    """Export."""
    from asyncrl.run.existing import open_existing
    from asyncrl.run.export_groups import export_groups

    config = load_from(args).config
    with open_existing(config) as (buffer, _):
        report = export_groups(
            buffer,
            args.file,
            states=args.state,
            first=args.first,
            text=decoder(config, buffer) if args.text else None,
            overwrite=args.overwrite,
        )
    for one in report.unread:
        print(f"{one['state']} group {one['gid']} is left out: {one['found']}", file=sys.stderr)
    if args.json:
        print(json.dumps({"file": str(args.file), **report.to_json()}))
    else:
        gone = f"; {len(report.moved_on)} left the buffer meanwhile" if report.moved_on else ""
        print(
            f"{args.file}: {report.by_state.total()} groups ({listed(report.by_state) or 'none'}), "
            f"{report.num_trajectories} trajectories, {report.num_tokens} tokens; {len(report.unread)} could not be "
            f"read{gone}"
        )
    return 1 if report.unread else 0


def decoder(config: Config, buffer: ReplayBuffer) -> Callable[[Sequence[int]], str]:
    """What makes text of tokens.

    Raises:
        DataError: there is no tokenizer, or it is not the run's.
    """
    texts = texts_of(config, buffer)
    if texts.decode is None:
        raise DataError(f"--text: {texts.why_not} Leave --text out, or set model.path.")
    return texts.decode
