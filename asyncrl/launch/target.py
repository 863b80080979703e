"""A place that runs the commands of a run: the settings it wants and the files that are written for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from asyncrl.config import Section
from asyncrl.launch.job import Job, Side


class NodeSettings(Section):
    """What a configuration does not say: the machines. `--set NAME=VALUE` gives each."""

    devices_per_node: int = Field(8, ge=1)
    """Accelerators of one machine."""
    cpus_per_node: int = Field(32, ge=1)
    """CPUs that are asked for on one machine."""
    memory_gib: int = Field(256, ge=1)
    """Memory that is asked for on one machine, GiB."""
    network: str = "10.0.0.0/8"
    """Network that joins the machines, for inference.host where that is this machine's loopback address."""


@dataclass(frozen=True)
class Target:
    """A row of TARGETS.

    Attributes:
        settings: class of its settings.
        side_file: template of the file that is written for each side, and its name with {side} in it.
        with_config: whether the configuration is written beside them, as run.yaml.
        facts: what its templates are given beside the job, the side and the settings.
        next_step: what to do with the files, with {files} in it.
    """

    name: str
    settings: type[NodeSettings]
    side_file: tuple[str, str]
    with_config: bool
    next_step: str
    facts: Callable[[Job, Side, Any], Mapping[str, object]] = lambda job, side, settings: {}
