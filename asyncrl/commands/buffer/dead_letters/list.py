"""List the groups that died, with reason, error, attempts and age, and whether the payload is still there."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import columns, listed, num_bytes, one_line, span_of_time
from buffer.answers import DeadLetter

HEAD = ("ordinal", "attempt", "died", "payload", "reason", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--reason", help="only those that died for this reason")
    parser.add_argument("--json", action="store_true", help="print as JSON, with whole errors")


def run(args: argparse.Namespace) -> int:
    """List."""
    from asyncrl.run.existing import open_existing

    with open_existing(load_from(args).config) as (buffer, _):
        letters = [letter for letter in buffer.dead_letters() if args.reason in (None, letter.reason)]
    print(json.dumps([to_json(letter) for letter in letters]) if args.json else render(letters))
    return 0


def to_json(letter: DeadLetter) -> dict[str, object]:
    """One letter as plain data."""
    return {
        "ordinal": letter.ordinal,
        "attempt": letter.attempt,
        "reason": letter.reason,
        "error": letter.error,
        "died_ms": letter.died_ms,
        "payload_bytes": None if letter.entry is None else letter.entry.num_bytes,
        "data_source": None if letter.entry is None else letter.entry.data_source,
    }


def render(letters: Sequence[DeadLetter]) -> str:
    """The letters for people."""
    if not letters:
        return "no dead letters"
    now_ms = time.time_ns() // 1_000_000
    table = columns(
        HEAD,
        [
            (
                str(letter.ordinal),
                str(letter.attempt),
                f"{span_of_time(max(0, now_ms - letter.died_ms) / 1000)} ago",
                "none" if letter.entry is None else num_bytes(letter.entry.num_bytes),
                letter.reason,
                one_line(letter.error),
            )
            for letter in letters
        ],
    )
    return f"{table}\n{len(letters)} dead letters: {listed(Counter(letter.reason for letter in letters))}"
