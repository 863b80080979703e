"""The arguments that every command with a configuration shares: the file, overrides, and ways to look at it."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from asyncrl import starter
from asyncrl.config import Config
from asyncrl.doctor import check, render
from asyncrl.load_config import LoadedConfig, describe, load, to_yaml


def add_config_arguments(
    parser: argparse.ArgumentParser,
    *,
    mode: bool = False,
    starts: bool = False,
    subject: tuple[str, Callable[[str], object], str] | None = None,
) -> None:
    """Add CONFIG, overrides and --help-keys; with `mode` also --mode; for a command that starts a cluster (`starts`)
    also the ways to look without starting; before the overrides one `subject`: its name, type and help."""
    parser.add_argument("config", type=Path, help="YAML file of the run, for example configs/tiny_cpu.yaml")
    if subject is not None:
        name, kind, text = subject
        parser.add_argument(name, type=kind, metavar=name.upper(), help=text)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys that win over the file: rollout.n=8")
    parser.add_argument("--help-keys", action=HelpKeys, help="print every key with its default and meaning, and stop")
    if starts:
        parser.add_argument("--print-config", action="store_true", help="print every key with its origin, and stop")
        parser.add_argument("--dry-run", action="store_true", help="check everything, start nothing")
        parser.add_argument("--json", action="store_true", help="with --dry-run: print the findings as JSON")
        parser.add_argument("--ray-address", metavar="HOST:PORT", help="start the processes on this Ray cluster")
    if mode:
        parser.add_argument("--mode", help="row of the table of modes: sync, colocate_async, separate_async")


class HelpKeys(argparse.Action):
    """Print the keys of the configuration; a flag that needs no file beside it, as --help needs none."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for key in describe():
            print(f"{key.name} ({key.type}, default {key.default})\n    {key.description}")
        parser.exit()


def load_from(args: argparse.Namespace) -> LoadedConfig:
    """Read what the arguments name. Raises ConfigError with every problem found."""
    mode, ray = getattr(args, "mode", None), getattr(args, "ray_address", None)
    of_flags = [f"mode={mode}"] if mode else []
    if ray:
        of_flags += ["cluster.backend=ray", f"cluster.ray_address={json.dumps(ray)}"]
    return load(args.config, [*args.overrides, *of_flags])


def look(args: argparse.Namespace, loaded: LoadedConfig) -> int | None:
    """Do what --print-config or --dry-run asks for, and give the exit code; None: start."""
    if args.print_config:
        print(to_yaml(loaded))
        return 0
    return examine(loaded.config, as_json=args.json) if args.dry_run else None


def examine(config: Config, *, as_json: bool) -> int:
    """Check everything a run needs, print it, and say by the exit code whether the run could start."""
    findings = check(config)
    if as_json:
        print(json.dumps([{"name": f.name, "ok": f.ok, "detail": f.detail, "fix": f.fix} for f in findings]))
    else:
        print(render(findings))
    return 0 if all(finding.ok for finding in findings) else 3


def make_missing(config: Config) -> None:
    """Make what `starter:` describes and is missing, before anything of the run is started; says so on stderr."""
    for what in starter.make(config):
        print(f"starter: made {what}", file=sys.stderr)
