"""Files with which a scheduler runs the two commands of a run: one target a file here, its templates beside it."""

from collections.abc import Mapping
from types import MappingProxyType

from asyncrl.launch import kuberay, skypilot, slurm
from asyncrl.launch.render import render
from asyncrl.launch.target import Target

__all__ = ["TARGETS", "Target", "render"]

TARGETS: Mapping[str, Target] = MappingProxyType(
    {target.name: target for target in (kuberay.TARGET, slurm.TARGET, skypilot.TARGET)}
)
"""Name of a target -> what is written for it."""
