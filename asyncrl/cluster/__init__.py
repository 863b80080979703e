"""Start, watch and stop processes by role, on this machine or on those of a cluster.

CLUSTERS is the table of places; each row is a module that offers `open_cluster(setup)`.
"""

import importlib
from typing import cast

from asyncrl.cluster.base import Child, Cluster, ClusterSetup, Failure, Seat, Wanted
from asyncrl.cluster.local import LocalChild, LocalCluster
from asyncrl.cluster.process import STARTER, die_with_parent, leave_reason, reason_file, stop_with_starter
from asyncrl.cluster.pulse import give_pulse
from asyncrl.errors import PreflightError

__all__ = [
    "CLUSTERS",
    "STARTER",
    "Child",
    "Cluster",
    "ClusterSetup",
    "Failure",
    "LocalChild",
    "LocalCluster",
    "Seat",
    "Wanted",
    "die_with_parent",
    "give_pulse",
    "leave_reason",
    "open_cluster",
    "reason_file",
    "stop_with_starter",
]

CLUSTERS = {"local": "asyncrl.cluster.local", "ray": "asyncrl.cluster.ray"}
"""`cluster.backend` -> the module that opens it, imported when it is chosen: a library that only one needs may be
missing for the others."""


def open_cluster(setup: ClusterSetup) -> Cluster:
    """The cluster of `cluster.backend`.

    Raises:
        PreflightError: its library is not installed, or it does not answer.
    """
    backend = setup.config.backend
    try:
        module = importlib.import_module(CLUSTERS[backend])
    except ModuleNotFoundError as error:
        raise PreflightError(
            f"cluster.backend = {backend} needs the package {error.name!r}, which is not installed: "
            f"pip install 'asyncrl[{backend}]'"
        ) from error
    return cast(Cluster, module.open_cluster(setup))
