"""Slurm: a batch script for each side; one that asks for several machines starts Ray on them."""

from asyncrl.launch.target import NodeSettings, Target


class SlurmSettings(NodeSettings):
    """Settings of the target slurm."""

    time: str = "24:00:00"
    """Longest run of one job; it is queued again at the end of it."""
    partition: str | None = None
    """Partition. None: the site's default."""
    account: str | None = None
    """Account. None: the site's default."""
    environment: str | None = None
    """Script that is sourced first, for example /shared/venv/bin/activate. None: asyncrl is on PATH."""
    secrets: str | None = None
    """File of NAME=VALUE lines, readable by you alone, with ASYNCRL_REDIS_URL in it. None: the environment that sbatch
    is called in."""


TARGET = Target(
    name="slurm",
    settings=SlurmSettings,
    side_file=("slurm.sbatch.j2", "{side}.sbatch"),
    with_config=True,
    next_step="sbatch {files}, each in its own call, in this folder or another that all machines share",
)
