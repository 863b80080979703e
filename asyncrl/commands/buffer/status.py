"""Where the groups of a run are, and why prompts start or do not. Changes nothing."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import facts, listed, num_bytes, span_of_time
from asyncrl.commands.token_texts import one_line
from buffer.status import Status

WHY_CLOSED: Mapping[str, Callable[[Status], str]] = {
    "stopped": lambda s: "the run was asked to stop; `resume`, or the next trainer, takes it back",
    "paused": lambda s: "an operator paused it; `resume` opens it",
    "no_trainer": lambda s: "no trainer has opened a branch yet; is `asyncrl train` running?",
    "window": lambda s: (
        f"{s.num_open} groups open and {s.num_taken} taken of a window of {s.window}; waits for the trainer"
    ),
    "bytes": lambda s: (
        f"{num_bytes(s.resident_bytes + s.promised_bytes)} of buffer.max_bytes = {num_bytes(s.max_bytes)} in use or "
        "promised; a checkpoint frees what is trained"
    ),
}
"""Reason -> what it means, with its numbers."""
MOST_CLAIMS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, with every claim")


def run(args: argparse.Namespace) -> int:
    """Print the status."""
    from asyncrl.run.existing import open_existing

    with open_existing(load_from(args).config) as (buffer, _):
        status = buffer.status()
    print(json.dumps(status.to_json()) if args.json else facts(rows(status)))
    return 0


def rows(status: Status) -> Iterator[tuple[str, str]]:
    """The status for people."""
    yield "run", status.run
    yield "trained version", f"{status.version}; limit {status.limit}, {status.groups_per_version} groups per version"
    used = f"{status.num_open + status.num_taken} of {status.window} groups of the window"
    for index, reason in enumerate(status.closed):
        yield "admission" if index == 0 else "", f"closed: {reason}: {WHY_CLOSED[reason](status)}"
    if not status.closed:
        yield "admission", f"open: {used}"
    yield "groups", listed({name: count for name, count in status.counts.items() if name != "next_ordinal"})
    yield (
        "bytes",
        f"{num_bytes(status.resident_bytes)} in groups and {num_bytes(status.promised_bytes)} promised of "
        f"{num_bytes(status.max_bytes)}; dead letters {num_bytes(status.dead_bytes)} of "
        f"{num_bytes(status.max_dead_bytes)}",
    )
    yield "workers", listed(status.workers) or "none holds a claim"
    for index, claim in enumerate(status.claims[:MOST_CLAIMS]):
        tokens = f"{claim.num_sampled:,} tokens, the oldest of {claim.oldest}" if claim.oldest else "no token yet"
        ends = f"{claim.left_s:.0f} s left" if claim.left_s >= 0 else f"late by {-claim.left_s:.0f} s, not yet swept"
        yield (
            "oldest claims" if index == 0 else "",
            f"{claim.ordinal}.{claim.attempt} for {span_of_time(claim.age_s)} by {claim.worker}; {tokens}; {ends}",
        )
    yield "tokens", one_line(status.tokens)
    yield "deaths", listed(status.deaths) or "none"
    yield "reasons", listed(status.reasons) or "none: every group went the happy path"
    if status.evaluation:
        yield "evaluation", f"of version {status.evaluation} is open"
