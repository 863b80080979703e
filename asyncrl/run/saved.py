"""The checkpoints of a run, as commands see them: are there any, are they sound, and as a model directory."""

from pathlib import Path

from asyncrl.config import Config
from asyncrl.errors import CheckpointError


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


def export_newest(config: Config, output: Path) -> Path:
    """Write the newest complete checkpoint as a Hugging Face directory at `output`.

    Raises:
        CheckpointError: there is none.
        ExportError: `output` exists, or cannot be written.
    """
    if not has_checkpoints(config):
        raise CheckpointError(f"{directory(config)} holds no checkpoint. Train first, or set run.name or run.dir.")
    from asyncrl.trainer.export import export_checkpoint

    return export_checkpoint(directory(config), config, output)
