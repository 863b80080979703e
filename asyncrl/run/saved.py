"""The checkpoints of a run, as commands see them: are there any, are they sound, which is best, and as a model."""

from pathlib import Path

from asyncrl.config import Config
from asyncrl.errors import CheckpointError
from asyncrl.trainer import checkpoint_files as files

BEST = "best"
"""In the place of a name: the checkpoint with the highest held-out score."""


def directory(config: Config) -> Path:
    """Where the run keeps its checkpoints."""
    return config.run.directory / "checkpoints"


def has_checkpoints(config: Config) -> bool:
    """Whether an earlier trainer of this run saved anything; looks at names only, so that it needs no torch."""
    return any(path.is_dir() for path in directory(config).glob("[0-9]*"))


def describe_checkpoints(config: Config, *, verify: bool) -> list[dict[str, str | float | None]]:
    """One row for each checkpoint, newest first, with the fields that `Checkpoints.describe` names."""
    from asyncrl.trainer.checkpoint import Checkpoints

    return Checkpoints(directory(config), config.trainer.checkpoint).describe(verify=verify)


def best_checkpoint(config: Config) -> dict[str, str | float] | None:
    """Name, step and score of the sound checkpoint with the highest held-out score; None if none was scored."""
    sound = [(name, path) for name, path in files.listed(directory(config)) if not files.problem(path, hashes=False)]
    scored = [(score, name) for name, path in sound if (score := files.read_score(path)) is not None]
    if not scored:
        return None
    score, name = max(scored)
    return {"name": str(name), "step": name.step, "score": score}


def export(config: Config, output: Path, chosen: str | None = None) -> dict[str, str | float | None]:
    """Write a checkpoint as a Hugging Face directory at `output`; what was exported, and where.

    Args:
        chosen: name or step of the checkpoint, or BEST; None: the newest.
    Raises:
        CheckpointError: there is none, or not this one.
        ExportError: `output` exists, or cannot be written.
    """
    if not has_checkpoints(config):
        raise CheckpointError(f"{directory(config)} holds no checkpoint. Train first, or set run.name or run.dir.")
    from asyncrl.trainer.checkpoint import Checkpoints
    from asyncrl.trainer.export import export_checkpoint

    there = Checkpoints(directory(config), config.trainer.checkpoint)
    saved = there.newest() if chosen is None else there.best() if chosen == BEST else there.named(chosen)
    if saved is None:
        raise CheckpointError(
            f"{directory(config)} holds no checkpoint with a held-out score. eval.every_versions makes scores, "
            "trainer.checkpoint.keep_best keeps what they are of; without --best the newest one is exported."
        )
    export_checkpoint(directory(config), config, output, chosen=saved)
    name = saved.name
    return {
        "output": str(output),
        "checkpoint": str(saved.path),
        "step": name.step,
        "version": f"{name.branch}.{name.number}",
        "score": files.read_score(saved.path),
    }
