"""The starter: makes the tiny model, its parquet files and its warm start, by seed, where they are missing.

Nothing heavy is imported before something has to be made, so that the rollout side can call it without torch.
"""

from collections.abc import Callable
from pathlib import Path

from asyncrl.config import Config, StarterConfig
from asyncrl.config.trainer import StarterSftConfig
from asyncrl.errors import ConfigError
from asyncrl.starter import task
from asyncrl.starter.lock import locked
from asyncrl.starter.problem import Problem
from asyncrl.starter.record import Spec, make_directory, make_file

__all__ = ["make"]

LOCK_DEADLINE_S = 600.0  # another command makes the same right now; it takes seconds, minutes on a loaded machine

Progress = Callable[[str, int, int], None]


def make(config: Config, progress: Progress | None = None) -> list[str]:
    """Make what `starter:` describes at model.path, data.*_files and starter.teacher.path, if it is missing.

    Several commands may call this at once: one makes, the others wait for it and find it.

    Args:
        progress: called as (text, done, in all) while something is made.
    Returns:
        What was made, one line each; empty if everything was there, or if there is no `starter:`.
    Raises:
        ConfigError: settings that cannot be made, or files in the way that are not what the settings describe.
        WaitTimeout: another command kept the lock for ten minutes.
    """
    starter = config.starter
    if starter is None:
        return []
    _check_places(config)
    task.check(starter.task)
    path = config.model.path
    with locked(path.with_name(f"{path.name}.lock"), LOCK_DEADLINE_S):
        return [*_make_data(config, starter), *_make_models(config, starter, progress or _silent)]


def _make_data(config: Config, starter: StarterConfig) -> list[str]:
    made = []
    spec: Spec = {"task": starter.task.model_dump(mode="json"), "seed": starter.seed}
    parts = (
        ("data.train_files", config.data.train_files, task.training, "train"),
        ("data.val_files", config.data.val_files, task.held_out, "test"),
    )
    for key, files, choose, split in parts:
        for path in files:

            def write(temporary: Path, choose: Choose = choose, split: str = split) -> None:
                from asyncrl.data.write import write_rows

                write_rows(temporary, task.rows(starter.task, choose(starter.task, starter.seed), split))

            if make_file(path, key, {**spec, "split": split}, write):
                num_rows = starter.task.train_rows if split == "train" else starter.task.val_rows
                made.append(f"{path}: {num_rows} prompts of {starter.task.name}")
    return made


def _make_models(config: Config, starter: StarterConfig, progress: Progress) -> list[str]:
    made = _make_model(config, starter, "model.path", config.model.path, starter.sft, progress)
    teacher = starter.teacher
    if teacher is not None:
        sft = starter.sft.model_copy(update={"steps": teacher.steps, "decoy": teacher.decoy})
        made += _make_model(config, starter, "starter.teacher.path", teacher.path, sft, progress)
    return made


def _make_model(
    config: Config, starter: StarterConfig, key: str, path: Path, sft: StarterSftConfig, progress: Progress
) -> list[str]:
    num_parameters = 0

    def write(temporary: Path) -> None:
        from asyncrl.starter.model import build_model, build_tokenizer, save
        from asyncrl.starter.supervised import warm_start

        nonlocal num_parameters
        tokenizer = build_tokenizer(calls_tools=task.TASKS[starter.task.name].calls_tools)
        model = build_model(starter.model, tokenizer, starter.seed)
        num_parameters = model.num_parameters()
        exclude = frozenset(problem.prompt for problem in task.held_out(starter.task, starter.seed))
        stream = task.problems(starter.task, starter.seed, "demonstrations", exclude)
        warm_start(model, tokenizer, stream, sft, starter.seed, progress)
        save(model, tokenizer, temporary, config.model.wire_dtype)

    # The number of training rows alone makes no other model: demonstrations are drawn, not read from the file.
    described = starter.model_dump(mode="json", exclude={"task": {"train_rows"}, "teacher": True, "sft": True})
    spec: Spec = {**described, "sft": sft.model_dump(mode="json"), "wire_dtype": config.model.wire_dtype}
    if not make_directory(path, key, spec, write):
        return []
    return [f"{path}: a Llama of {num_parameters / 1e6:.2f} M parameters, warm-started in {sft.steps} steps"]


Choose = Callable[..., list[Problem]]


def _check_places(config: Config) -> None:
    for key, files, most in (
        ("data.train_files", config.data.train_files, 1),
        ("data.val_files", config.data.val_files, 1),
    ):
        if len(files) > most:
            raise ConfigError(
                f"{key} lists {len(files)} files, but the starter makes one. List one file, or set starter: null."
            )
        for path in files:
            if path.suffix != ".parquet":
                raise ConfigError(
                    f"{key} = {path} does not end in .parquet, but that is what the starter makes. Rename it, or set "
                    "starter: null if the file is yours."
                )
    if not config.data.train_files:
        raise ConfigError(
            "data.train_files is empty, but starter: describes prompts to make. Name the file to write, for example "
            "data.train_files: [runs/data/train.parquet]."
        )


def _silent(text: str, done: int, total: int) -> None:
    del text, done, total
