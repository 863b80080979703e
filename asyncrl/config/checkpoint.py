"""Section of checkpoints: when they are written, how, and which are kept."""

from pydantic import Field

from asyncrl.config.section import Section


class CheckpointConfig(Section):
    """When checkpoints are written and which are kept."""

    every_steps: int = Field(10, ge=1)
    """Steps between two checkpoints; one is also written at the end, at a graceful stop, and when memory is short."""
    asynchronous: bool = True
    """Train on while a periodic checkpoint is written: a step waits for a copy of its rank's state in CPU memory (12
    bytes a parameter with AdamW) and for nothing else. False: no copy, and the step waits for the disk."""
    write_deadline_s: float = Field(3600.0, gt=0)
    """Seconds that writing one may take before the run leaves with exit code 75, to be started with --resume."""
    keep_last: int = Field(2, ge=1)
    """Newest checkpoints that are kept."""
    keep_every: int | None = Field(None, ge=1)
    """Also keep each checkpoint whose step is a multiple of this, for ever."""
    keep_best: int = Field(0, ge=0)
    """Also keep so many with the highest held-out score. Above 0 each version that is evaluated gets a checkpoint."""
