"""Train variants of a configuration, each with several seeds, and tabulate quality against throughput.

    asyncrl sweep configs/tiny_cpu.yaml staleness.limit=0,2,4 staleness.policy=wait,drop --seeds 3

Every variant is a whole run in processes of its own, with a directory of its own. A sweep that is started again goes
on: finished variants are not run again, an interrupted one goes on from its checkpoint.

Exit codes: 0 every variant finished; 1 some failed, and are named; 2 a key or value is wrong, and nothing was started.
"""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.commands.config_arguments import HelpKeys, make_missing
from asyncrl.commands.tables import columns, one_line
from asyncrl.load_config import load

if TYPE_CHECKING:
    from asyncrl.tuning.sweep_table import Figures
    from asyncrl.tuning.variant_run import Runs
    from asyncrl.tuning.variants import Variant

LOOK_S = 0.5
HEAD = ("held-out", "+-", "seeds", "tokens/s", "s/step", "stall", "lag", "stale", "variant")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("config", type=Path, help="YAML file of the run, for example configs/tiny_cpu.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=a,b", help="keys and the values to try: rollout.n=8,16")
    parser.add_argument("--help-keys", action=HelpKeys, help="print every key with its default and meaning, and stop")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each variant, with run.seed 0, 1, ...")
    parser.add_argument("--dir", type=Path, help="where the runs go; default: runs/sweep-<name of the file>")
    parser.add_argument("--mode", help="row of the table of modes: sync, colocate_async, separate_async")
    parser.add_argument("--at-once", type=int, default=1, help="variants that run at the same time")
    parser.add_argument("--deadline-s", type=float, default=86400.0, help="seconds that one variant may take")
    parser.add_argument("--json", action="store_true", help="print the table and the single runs as JSON")


def run(args: argparse.Namespace) -> int:
    """Run what is missing and print the table."""
    from asyncrl.tuning.sweep_table import result_of, tabulate
    from asyncrl.tuning.variant_run import Launch, Runs, is_finished
    from asyncrl.tuning.variants import variants_of

    variants = variants_of(args.overrides, seeds=range(args.seeds))
    root = (args.dir or Path("runs") / f"sweep-{args.config.stem}").resolve()
    launch = Launch(args.config, root, args.mode, args.deadline_s)
    configs = {variant: load(launch.config, launch.overrides(variant)).config for variant in variants}
    for config in configs.values():
        make_missing(config)
    runs = Runs(launch)
    failures: dict[Variant, str] = {}

    def play(variant: "Variant") -> None:
        failure = _play(runs, launch.directory(variant), variant, shares_gpus=configs[variant].plan.shares_gpus)
        if failure:
            failures[variant] = failure

    with _terminated_like_interrupted(), ThreadPoolExecutor(args.at_once) as pool:
        try:
            for future in [pool.submit(play, variant) for variant in variants]:
                # A signal between Python's last look and a wait is seen after the wait only: so none is long.
                while wait([future], timeout=LOOK_S).not_done:
                    pass
                future.result()
        except BaseException:
            runs.stop()
            pool.shutdown(cancel_futures=True)
            raise
    finished = [variant for variant in variants if is_finished(launch.directory(variant))]
    results = {variant: result_of(launch.directory(variant)) for variant in finished}
    rows = tabulate(results)
    if args.json:
        single = {variant.name: {"overrides": variant.overrides, **vars(results[variant])} for variant in finished}
        print(json.dumps({"rows": [row.to_json() for row in rows], "runs": single, "failed": _named(failures)}))
    else:
        print(render(rows, root))
    for variant, failure in failures.items():
        print(f"asyncrl sweep: {variant.name}: {failure}", file=sys.stderr)
    return 1 if failures else 0


def render(rows: "Sequence[Figures]", root: Path) -> str:
    """The table for people."""
    if not rows:
        return f"No variant has finished in {root}."
    table = columns(HEAD, [_cells(row) for row in rows])
    return f"{table}\n\n+- is the standard deviation between seeds. The runs are in {root}."


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends the sweep as Ctrl-C does: its runs are asked to stop, instead of going on without it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _play(runs: "Runs", directory: Path, variant: "Variant", *, shares_gpus: bool) -> str:
    """Run a variant unless it has finished; why it failed, empty if it did not."""
    from asyncrl.tuning.variant_run import VariantFailed, is_finished

    if is_finished(directory):
        print(f"{variant.name}: finished before", file=sys.stderr)
        return ""
    print(f"{variant.name}: starts in {directory}", file=sys.stderr)
    try:
        runs.train(variant, shares_gpus=shares_gpus)
    except VariantFailed as error:
        return str(error)
    if not is_finished(directory):
        return f"it was stopped before its last step; run the sweep again to go on with it. See {directory}."
    print(f"{variant.name}: finished", file=sys.stderr)
    return ""


def _named(failures: "dict[Variant, str]") -> dict[str, str]:
    return {variant.name: one_line(failure) for variant, failure in failures.items()}


def _cells(row: "Figures") -> Sequence[str]:
    return (
        "-" if row.held_out is None else f"{row.held_out:.4f}",
        "-" if row.held_out_spread is None else f"{row.held_out_spread:.4f}",
        str(row.seeds),
        f"{row.tokens_per_s:,.0f}",
        f"{row.step_s:.2f}",
        f"{row.stall_share:.0%}",
        f"{row.lag_mean:.2f}",
        f"{row.stale_share:.1%}",
        row.label,
    )
