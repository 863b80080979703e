"""`python -m weightsync inspect | verify | bench`: look at a run's version log or at a model directory, prove that the
parts of a run make its head or that a directory has a digest, and measure what a version costs on this machine."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from weightsync.config import WeightsyncConfig
from weightsync.errors import WeightsyncError
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.transport import open_transport
from weightsync.versions import label

KEY = "ASYNCRL_WEIGHTSYNC_KEY"
"""Environment variable with weightsync.key, for verify: a secret does not belong on a command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all is well, 1 if something is wrong with the versions, 2 for bad arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "bench" and not (options.words >= 64 and 0 < options.changed <= 1):
        parser.error("--words must be at least 64, and --changed above 0 and at most 1.")
    try:
        found = _run(options)
    except WeightsyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found) if options.json else render(found))
    return 0 if found.get("ok", True) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weightsync", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("inspect", "print head, versions, servers and needs of a run; or layout and digest of a model directory"),
        ("verify", "read every part of every version, rebuild head and compare digests; or a model directory's digest"),
        ("bench", "what a version costs on this machine: gigabytes of weights a second and core, step by step"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--json", action="store_true", help="one JSON object instead of text")
        if name == "bench":
            command.add_argument("log", nargs="?", help="URL of a Redis that moves parts; none: no transport, or files")
            command.add_argument("--words", type=int, default=4 << 20, help="of the bucket that is measured")
            command.add_argument("--changed", type=float, default=0.03, help="fraction of the words that change")
            command.add_argument("--directory", help="weightsync.directory, to measure it as a transport")
            continue
        command.add_argument("log", help="URL of the run's Redis, the folder of a directory log, or a model directory")
        command.add_argument("run", nargs="?", help="name of the run; none: a model directory is meant")
        if name == "verify":
            home = command.add_mutually_exclusive_group()
            home.add_argument("--directory", help="weightsync.directory, if parts are moved by files")
            home.add_argument("--tcp", action="store_true", help="the trainer runs, and has the parts in its memory")
            home.add_argument(
                "--digest", help="what a model directory must have: 16 hex digits, as inspect prints them"
            )
    return parser


def _run(options: argparse.Namespace) -> dict[str, object]:
    if options.command == "bench":
        return bench(options.log, options.directory, options.words, options.changed)
    if options.run is None:
        return inspect_directory(Path(options.log), getattr(options, "digest", None))
    log = open_log(options.log, options.run)
    if options.command == "inspect":
        return inspect(log)
    return verify(log, options.log, options.directory, tcp=options.tcp)


def bench(home: str | None, directory: str | None, num_words: int, changed: float) -> dict[str, object]:
    """Rates of this machine, and of a transport if one is named."""
    from weightsync.self_measurement import measure  # here: inspect needs no codec

    config = WeightsyncConfig.model_validate({"directory": directory})
    transport = None
    if home is not None or directory is not None:
        transport = open_transport(config, home or "", "bench")
    return measure(num_words, changed, transport, "bench")


def inspect_directory(path: Path, digest: str | None = None) -> dict[str, object]:
    """Layout and digest of a model directory; compared with `digest` if there is one."""
    from weightsync.digest import digest_of_model_dir  # here: inspect of a log needs no kernels

    manifest = Manifest.from_model_dir(path)
    found = f"{digest_of_model_dir(path, manifest):016x}"
    return {
        "model_dir": str(path),
        "layout": manifest.layout_id,
        "tensors": len(manifest.tensors),
        "words": manifest.num_words,
        "bytes": manifest.num_bytes,
        "dtypes": dict(Counter(spec.dtype for spec in manifest.tensors)),
        "ties": dict(manifest.ties),
        "digest": found,
        **({} if digest is None else {"expected": digest, "ok": found == digest}),
    }


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
                "merged_bytes": sum(merged.upload.num_bytes for merged in record.merged),
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
