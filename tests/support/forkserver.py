"""Processes forked from one that has imported torch, transformers and ours: a start takes a tenth of a second, not 5.

Otherwise they are as any: each has its memory, signals and end, and one that is killed takes nobody with it.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]


def forkserver() -> ForkServerContext:
    """The one context for all of them: a process of tests has one such server, with what was asked for first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.warm"])
    return context


@dataclass(frozen=True)
class Finished:
    """How a module ended, and what it wrote."""

    code: int | None
    out: str
    err: str


def run_modules(
    module: str, arguments: Sequence[str], environments: Sequence[Mapping[str, str]], directory: Path, timeout_s: float
) -> list[Finished]:
    """What `python -m MODULE ARGUMENTS` does in this environment and each of `environments`, all at once.

    Args:
        directory: for their output.
        timeout_s: that they have together; who has not ended then is killed, and has no code.
    """
    context = forkserver()
    outputs = [directory / f"rank-{number}" for number in range(len(environments))]
    processes = [
        context.Process(target=_run, args=(module, list(arguments), {**os.environ, **own}, output), daemon=True)
        for own, output in zip(environments, outputs, strict=True)
    ]
    deadline = monotonic() + timeout_s
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, deadline - monotonic()))
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    texts = [[output.with_suffix(suffix).read_text() for suffix in (".out", ".err")] for output in outputs]
    return [Finished(code, *text) for code, text in zip(codes, texts, strict=True)]


def _run(module: str, arguments: list[str], environment: dict[str, str], output: Path) -> None:
    for number, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(output.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
