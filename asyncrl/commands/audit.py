"""Prove from the ledger that no prompt was lost or trained twice. Exit code 1 if the accounts do not balance."""

import argparse
import json

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from buffer.audit import Audit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the audit as JSON")


def run(args: argparse.Namespace) -> int:
    """Audit the run's buffer."""
    from asyncrl.run.existing import open_existing

    with open_existing(load_from(args).config) as (buffer, _):
        audit = buffer.audit()
    print(json.dumps(audit.to_json()) if args.json else render(audit))
    return 0 if audit.ok else 1


def render(audit: Audit) -> str:
    """The audit for people: groups by state, reasons of those that left the happy path, and what does not balance."""
    rows = [f"{state:<12} {count}" for state, count in audit.identity.items()]
    reasons = [f"{reason:<24} {count}" for reason, count in audit.by_reason.items()]
    verdict = "The accounts balance." if audit.ok else "\n".join(audit.problems)
    return "\n".join([*rows, "", *(["by reason:", *reasons, ""] if reasons else []), verdict])
