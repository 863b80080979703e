"""Launch: write the files with which a scheduler runs both commands of a run, each on as many machines as it needs.

Nothing is submitted. What the configuration does not say (images, machines, queues) is given by --set NAME=VALUE;
`asyncrl launch TARGET --help-settings` lists the names. See docs/launch.md.
"""

import argparse
from pathlib import Path

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.launch import TARGETS, render
from asyncrl.launch.render import CONFIG, keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("target", choices=TARGETS, help="where the run is to go")
    add_config_arguments(parser, mode=True)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the target; may be repeated"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the files (launch/TARGET)")
    parser.add_argument("--dry-run", action="store_true", help="print the files, write none")
    parser.add_argument("--help-settings", action=HelpSettings, help="print the settings of the target, and stop")


class HelpSettings(argparse.Action):
    """Print the settings of the targets; a flag that needs no file beside it."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        asked = getattr(namespace, "target", None)
        for target in TARGETS.values() if asked is None else [TARGETS[asked]]:
            print(f"{target.name}:")
            for key in keys(target):
                print(f"  {key.name} ({key.type}, default {key.default})\n      {key.description}")
        parser.exit()


def run(args: argparse.Namespace) -> int:
    """Write or print the files of a target."""
    target = TARGETS[args.target]
    files = render(target, load_from(args), args.set)
    if args.dry_run:
        for name, text in files.items():
            print(f"##### {name}\n{text}")
        return 0
    folder = args.out if args.out is not None else Path("launch") / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
        print(f"wrote {folder / name}")
    print(f"next: {target.next_step.format(files=' '.join(name for name in files if name != CONFIG))}")
    return 0
