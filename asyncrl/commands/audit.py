"""Prove from the ledger that no prompt was lost or trained twice, and that every sampled token has one end.

Also said: why groups left the happy path, what of the sampled tokens was wasted, and whether dropping selected on
length, by data source.

Exit codes: 0 the accounts balance; 1 they do not, and every anomaly is named.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.commands import token_texts
from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import columns, facts, listed
from buffer.audit import Audit

if TYPE_CHECKING:
    from asyncrl.report.length_bias import LengthBias


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--payloads", action="store_true", help="also read and check the payload of every group")
    parser.add_argument("--json", action="store_true", help="print the audit as JSON")


def run(args: argparse.Namespace) -> int:
    """Audit the run's buffer."""
    from asyncrl.run.existing import open_existing

    config = load_from(args).config
    with open_existing(config) as (buffer, _):
        audit = buffer.audit(payloads=args.payloads)
        bias = length_bias_of(config.run.directory, audit, buffer.reports())
    print(json.dumps(to_json(audit, bias, args.payloads)) if args.json else render(audit, bias, args.payloads))
    return 0 if audit.ok else 1


def length_bias_of(
    run_dir: Path, audit: Audit, reports: Mapping[str, Mapping[str, float | str]]
) -> dict[str, "LengthBias"]:
    """Lengths started against lengths trained, by source: by the token ledger, what workers report, and the metrics of
    the run directory where it is on this machine."""
    from asyncrl.report import length_bias, rollout_facts
    from asyncrl.report.lines import read, surviving

    # Workers that have left keep no report; the command that closed the run wrote their sums down.
    ended = rollout_facts.of_reports(reports).ended or rollout_facts.read(run_dir).ended
    return length_bias.measure(surviving(read(run_dir)), ended, audit.tokens.to_json()["fates"])


def to_json(audit: Audit, bias: Mapping[str, "LengthBias"], payloads: bool) -> dict[str, Any]:
    """The audit as plain data."""
    return {
        **audit.to_json(),
        "payloads_checked": payloads,
        "tokens": token_texts.to_json(audit.tokens),
        "length_bias": {source or "all": measured.to_json() for source, measured in bias.items()},
    }


def render(audit: Audit, bias: Mapping[str, "LengthBias"], payloads: bool) -> str:
    """The audit for people; the verdict comes last."""
    blocks = [facts((state, str(count)) for state, count in audit.identity.items())]
    if audit.tokens.fates:
        blocks.append(columns(token_texts.HEAD, token_texts.table(audit.tokens)))
    blocks.append(facts(sentences(audit, bias, payloads)))
    balance = "The accounts balance: every ordinal is in exactly one state, every sampled token held or ended once."
    blocks.append(balance if audit.ok else "\n".join(("The accounts do not balance:", *audit.problems)))
    return "\n\n".join(blocks)


def sentences(audit: Audit, bias: Mapping[str, "LengthBias"], payloads: bool) -> Iterator[tuple[str, str]]:
    """What the numbers say."""
    yield "reasons", listed(audit.by_reason) or "none: every group went the happy path"
    if audit.dead:
        yield "dead letters", f"{len(audit.dead)}; `asyncrl buffer dead-letters list` shows why"
    yield "tokens", f"{audit.tokens.sampled:,} sampled, {audit.tokens.held:,} held. {token_texts.verdict(audit.tokens)}"
    several = len(bias) > 2
    for source, measured in bias.items():
        if several or not source:
            yield (f"length bias, {source}" if source else "length bias"), measured.verdict()
    yield "payloads", "each was read and checked" if payloads else "not read; --payloads checks each of them"
