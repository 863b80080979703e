"""Which prompt each ordinal of a run was given by a curriculum, and why: one JSON object a line, by ordinal.

Of a prompt that has a result, its newest one is there too. Ordinals of a run without a curriculum need no record: the
ordinal says the prompt. Changes nothing.
"""

import argparse
import json
import sys
from pathlib import Path

from asyncrl.commands.config_arguments import add_config_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of to the screen")


def run(args: argparse.Namespace) -> int:
    """Print or write the draws."""
    from asyncrl.run.existing import open_existing

    with open_existing(load_from(args).config) as (buffer, _):
        draws, rates = buffer.draws()
    lines = []
    for ordinal, draw in draws.items():
        line = {"ordinal": ordinal, "position": draw.position, "prompt": draw.prompt, "reason": draw.reason}
        if (rate := rates.get(draw.prompt)) is not None:
            line |= {"passed": rate.passed, "scored": rate.scored, "result_of": rate.ordinal}
        lines.append(json.dumps(line) + "\n")
    if args.out is None:
        sys.stdout.writelines(lines)
    else:
        args.out.write_text("".join(lines))
        print(f"wrote {args.out}: {len(lines)} draws")
    return 0
