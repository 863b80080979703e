"""How much staleness costs, and what corrections give back: whole trainings with an exact lag, in this process.

    scripts/bench staleness [--full] [--only TASK] [--etas 0,4,8] [--methods naive,tis] [--seeds 8] [--jobs 2]
                            [--results FILE] [--report]

Each run trains the quickstart's model; every step trains on groups that were sampled exactly eta versions earlier (see
staleness_cases/experiment.py). The same seed means the same prompts in every condition, so ratios are of pairs. Results
go to a file as they come: what is in it is not run again, and other settings never mix. `--report` runs nothing and
writes docs/staleness-study*.md with their plots from the file, and the file itself, packed, beside them: the study goes
on from there on any machine.

`eta4_tis_over_eta0` is the mean final held-out score at eta 4 with TIS by that at eta 0; its 95 % interval is a paired
bootstrap over seeds. Not shown: seconds (sampler and trainer take turns), large models, long answers.
"""

import argparse
import gzip
import json
import multiprocessing as mp
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.benches.staleness_cases.conditions import DEFAULT, FULL, METHODS, SORT, TASKS, Condition, Task, fingerprint
from scripts.benches.staleness_cases.statistics import paired_ratio

HOME = Path("runs/bench/staleness")
RESULTS = HOME / "results.jsonl"
DOCS = Path("docs")
KEPT = DOCS / "staleness-study.jsonl.gz"


def main(argv: Sequence[str] = ()) -> dict[str, float | int | list[float]]:
    """Run what is not there yet; the figures of what is."""
    args = _arguments(argv)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    if args.results == RESULTS and not RESULTS.exists() and KEPT.exists():
        RESULTS.write_bytes(gzip.decompress(KEPT.read_bytes()))
    if not args.report:
        plan = _plan(args)
        missing = [job for job in plan if _key(*job, args.set) not in _keys(args.results)]
        print(f"{len(plan)} runs, {len(missing)} of them not in {args.results} yet", file=sys.stderr)
        _run(missing, args)
    results = list(read(args.results))
    if args.report:
        from scripts.benches.staleness_cases.report import write_report

        write_report(results, DOCS)
        KEPT.write_bytes(gzip.compress(args.results.read_bytes(), mtime=0))
    return figures(results, args.only or SORT.name)


def figures(results: Sequence[dict[str, Any]], task: str) -> dict[str, float | int | list[float]]:
    """Every stale condition by eta 0 without correction, with its interval and the number of seeds."""
    finals: dict[str, dict[int, float]] = {}
    for result in results:
        if result["task"] == task:
            finals.setdefault(result["condition"], {})[result["seed"]] = result["final"]
    found: dict[str, float | int | list[float]] = {}
    fresh = finals.get("eta0_naive", {})
    for name, scores in sorted(finals.items()):
        found[f"{name}_score"] = round(sum(scores.values()) / len(scores), 4)
        ratio = None if name == "eta0_naive" else paired_ratio(scores, fresh)
        if ratio is not None:
            found[f"{name}_over_eta0"] = round(ratio.value, 4)
            found[f"{name}_over_eta0_interval"] = [round(ratio.low, 4), round(ratio.high, 4)]
            found[f"{name}_seeds"] = ratio.num_seeds
    return found


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The results in a file; a last line that was cut off is left out."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}: a line of {len(line)} characters is cut off and left out", file=sys.stderr)


Job = tuple[Task, Condition, int]


def _plan(args: argparse.Namespace) -> list[Job]:
    """All runs, seed by seed, so that what there is at any moment is mostly pairs."""
    parts = [part for part in (FULL if args.full else DEFAULT) if args.only in (None, part.task.name)]
    if args.etas or args.methods:
        parts = [replace(part, etas=args.etas or part.etas, methods=args.methods or part.methods) for part in parts]
    seeds = range(args.seeds or (3 if args.full else 8))
    return [(part.task, condition, seed) for seed in seeds for part in parts for condition in part.conditions()]


def _run(jobs: Sequence[Job], args: argparse.Namespace) -> None:
    with _pool(args.jobs) as pool:
        running = {pool.submit(_one, job, args.scratch, args.set): job for job in jobs}
        for done in as_completed(running):
            task, condition, seed = running[done]
            result = done.result()
            line = {"key": _key(task, condition, seed, args.set), "task": task.name, "condition": condition.name}
            line |= {"eta": condition.eta, "method": condition.method, "policy": condition.policy, "seed": seed}
            with args.results.open("a") as file:
                file.write(json.dumps(line | result) + "\n")
            print(f"{line['key']}: {result['final']:.4f} in {result['cpu_s']} CPU s", file=sys.stderr, flush=True)


def _pool(jobs: int) -> ProcessPoolExecutor:
    """Each run in a process of its own; the slow imports are made once, in the server that they are forked from."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["scripts.benches.staleness_cases.experiment"])
    return ProcessPoolExecutor(jobs, context, max_tasks_per_child=1)


def _one(job: Job, scratch: Path, extra: Sequence[str]) -> dict[str, Any]:
    from scripts.benches.staleness_cases.experiment import Experiment, configuration

    task, condition, seed = job
    return Experiment(configuration(task, condition, seed, scratch, extra), task, condition).run()


def _key(task: Task, condition: Condition, seed: int, extra: Sequence[str]) -> str:
    return f"{task.name}/{condition.name}/{seed}/{fingerprint(task, condition, extra)}"


def _keys(path: Path) -> set[str]:
    return {result["key"] for result in read(path)}


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench staleness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="every task, lag, method and policy, 3 seeds")
    parser.add_argument("--only", choices=tuple(TASKS), help="one task of the study")
    parser.add_argument("--etas", type=lambda text: tuple(int(part) for part in text.split(",")))
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--seeds", type=int, help="default 8, with --full 3")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, each in a process of one thread")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of every run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=HOME / "made", help="where the starter's models go")
    parser.add_argument(
        "--report", action="store_true", help="write docs/staleness-study*.md and their plots; run nothing"
    )
    args = parser.parse_args(argv)
    for name in args.methods or ():
        if name not in METHODS:
            parser.error(f"--methods: {name!r} is not one of {', '.join(METHODS)}")
    return args
