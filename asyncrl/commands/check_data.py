"""Say which rows of Parquet or JSON Lines files are usable, and why others are not. Exit code 2: a file is refused."""

import argparse
import json
from pathlib import Path

from asyncrl.data.check import run_check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="Parquet or JSON Lines files")
    parser.add_argument("--tokenizer", type=Path, help="model directory: also checks prompt lengths and control tokens")
    parser.add_argument(
        "--max-prompt-tokens", type=int, help="with --tokenizer: rows longer than this are counted as too long"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Check and print."""
    from asyncrl.config import DataConfig

    config = DataConfig() if args.max_prompt_tokens is None else DataConfig(max_prompt_tokens=args.max_prompt_tokens)
    report = run_check(args.files, config=config, tokenizer_dir=args.tokenizer)
    print(json.dumps(report.to_json()) if args.json else report.render())
    return report.exit_code
