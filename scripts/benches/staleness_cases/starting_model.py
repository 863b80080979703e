"""The model that a study starts from: the starter's, or one whose wrong answers are the fast ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from asyncrl.config import Config
from asyncrl.starter import make, task
from asyncrl.starter.lock import locked
from asyncrl.starter.model import build_model, build_tokenizer, save
from asyncrl.starter.problem import Problem
from asyncrl.starter.record import make_directory
from asyncrl.starter.supervised import warm_start
from scripts.benches.staleness_cases.conditions import Task

LOCK_DEADLINE_S = 1200.0


def make_model(config: Config, chosen: Task) -> None:
    """Make the model at model.path, if it is missing; runs that start together wait for the one that makes it."""
    assert config.starter is not None
    if not chosen.stops_early:
        make(config)
        return
    path, starter = config.model.path, config.starter

    def write(temporary: Path) -> None:
        tokenizer = build_tokenizer()
        model = build_model(starter.model, tokenizer, starter.seed)
        exclude = frozenset(problem.prompt for problem in task.held_out(starter.task, starter.seed))
        stream = stopping_early(task.problems(starter.task, starter.seed, "demonstrations", exclude))
        warm_start(model, tokenizer, stream, starter.sft, starter.seed, lambda text, done, total: None)
        save(model, tokenizer, temporary, config.model.wire_dtype)

    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), LOCK_DEADLINE_S):
        make_directory(path, "model.path", {**starter.model_dump(mode="json"), "stops_early": True}, write)


def stopping_early(problems: Iterator[Problem]) -> Iterator[Problem]:
    """The same problems with the right answer's beginnings as the wrong ones: half of it, and all but its end."""
    for problem in problems:
        half, most = problem.answer[: len(problem.answer) // 2], problem.answer[:-1]
        yield replace(problem, decoys=(half, most, problem.answer))
