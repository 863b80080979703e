"""`python -m weightsync inspect | verify`: look at a run's version log, and prove that its parts make its head."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from weightsync.config import WeightsyncConfig
from weightsync.errors import WeightsyncError
from weightsync.log import VersionLog, open_log
from weightsync.transport import open_transport
from weightsync.versions import label

KEY = "ASYNCRL_WEIGHTSYNC_KEY"
"""Environment variable with weightsync.key, for verify: a secret does not belong on a command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all is well, 1 if something is wrong with the versions, 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m weightsync", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("inspect", "print head, versions, servers and needs"),
        ("verify", "read every part of every version, rebuild head from the log and compare digests"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("log", help="URL of the run's Redis, or the folder of a directory log")
        command.add_argument("run", help="name of the run")
        command.add_argument("--json", action="store_true", help="one JSON object instead of text")
        if name == "verify":
            home = command.add_mutually_exclusive_group()
            home.add_argument("--directory", help="weightsync.directory, if parts are moved by files")
            home.add_argument("--tcp", action="store_true", help="the trainer runs, and has the parts in its memory")
    options = parser.parse_args(arguments)
    try:
        log = open_log(options.log, options.run)
        if options.command == "inspect":
            found = inspect(log)
        else:
            found = verify(log, options.log, options.directory, tcp=options.tcp)
    except WeightsyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found) if options.json else render(found))
    return 0 if found.get("ok", True) else 1


def inspect(log: VersionLog) -> dict[str, object]:
    """What the log holds, as plain values."""
    records = log.records()
    return {
        "run": log.run,
        "owner": log.owner(),
        "head": label(records[-1].version) if records else None,
        "versions": [
            {
                "version": label(record.version),
                "base": label(record.base) if record.base is not None else None,
                "digest": f"{record.digest:016x}",
                "changed": record.num_changed,
                "words": record.num_words,
                "delta_bytes": record.delta.num_bytes if record.delta is not None else 0,
                "anchor_bytes": record.anchor.num_bytes if record.anchor is not None else 0,
                "model_dir": record.model_dir,
            }
            for record in records
        ],
        "servers": {
            name: {"version": label(ack.version), "digest": f"{ack.digest:016x}", "state": ack.state, "url": ack.url}
            for name, ack in log.acks().items()
        },
        "needs": [
            {"server": need.server, "reason": need.reason, "age_s": round(need.age_s, 1)} for need in log.needs()
        ],
        "wish": log.wish(),
    }


def verify(log: VersionLog, home: str, directory: str | None, *, tcp: bool = False) -> dict[str, object]:
    """Read everything and rebuild head as a reader that starts with nothing."""
    from weightsync.audit import audit  # here: inspect needs no codec

    settings = {"transport": "tcp" if tcp else "auto", "directory": directory, "key": os.environ.get(KEY)}
    config = WeightsyncConfig.model_validate(settings)
    return audit(log, open_transport(config, home, log.run), config)


def render(found: dict[str, object]) -> str:
    """The same as lines of text."""
    lines = []
    for name, value in found.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"  {_line(entry)}" for entry in value)]
        elif isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key}: {_line(entry)}" for key, entry in value.items())]
        else:
            lines.append(f"{name}: {value}")
    return "\n".join(lines)


def _line(entry: object) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    return "  ".join(f"{key} {value}" for key, value in entry.items() if value not in (None, 0))


if __name__ == "__main__":
    sys.exit(main())
