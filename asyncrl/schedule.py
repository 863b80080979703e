"""A mode is data: how stale groups may be, who shares devices, and when a version is published."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Schedule:
    """One row of the table of modes.

    Attributes:
        limit: largest lag, in versions, that may be trained on (`staleness.limit`, eta in docs). 0 is on-policy.
        shares_gpus: rollout and trainer take turns on the same devices; `train` then starts the rollout side too.
        steps_per_version: optimizer steps between two published versions.
        lend_trainer_gpus: the trainer has devices of its own, and servers of its own on them, which serve while it
            waits. Where devices are shared, all servers are such servers.
    """

    limit: int
    shares_gpus: bool
    steps_per_version: int = 1
    lend_trainer_gpus: bool = False

    @property
    def lends(self) -> bool:
        """Whether servers are on the trainer's devices, so that both take turns."""
        return self.shares_gpus or self.lend_trainer_gpus


MODES: Mapping[str, Schedule] = MappingProxyType(
    {
        "sync": Schedule(limit=0, shares_gpus=True),
        "colocate_async": Schedule(limit=1, shares_gpus=True),
        "separate_async": Schedule(limit=2, shares_gpus=False),
    }
)
