"""The replay buffer: groups of trajectories travel from the rollout cluster to the trainer cluster, each exactly once.

Names are imported when first used, so that `import buffer` stays light: no redis, no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buffer.config import BufferConfig, PartialsConfig, PayloadConfig, StalenessConfig
    from buffer.embedded import Embedded, ensure
    from buffer.errors import (
        Behind,
        BufferError,
        CorruptPayload,
        Fenced,
        RunMismatch,
        ServerFull,
        ServerLost,
        ServerRefused,
        TooLarge,
        TrajectoryError,
        UnknownSchema,
    )
    from buffer.replay_buffer import ReplayBuffer
    from buffer.trajectory import Group, Row, Span, Trajectory

OWNER = "asyncrl"
"""Whose package this is: PyPI has another `buffer`, and pip lets one overwrite the other without a word."""

_HOME = {
    **dict.fromkeys(("BufferConfig", "PartialsConfig", "PayloadConfig", "StalenessConfig"), "buffer.config"),
    **dict.fromkeys(("Embedded", "ensure"), "buffer.embedded"),
    **dict.fromkeys(
        (
            "Behind",
            "BufferError",
            "CorruptPayload",
            "Fenced",
            "RunMismatch",
            "ServerFull",
            "ServerLost",
            "ServerRefused",
            "TooLarge",
            "TrajectoryError",
            "UnknownSchema",
        ),
        "buffer.errors",
    ),
    **dict.fromkeys(("ReplayBuffer",), "buffer.replay_buffer"),
    **dict.fromkeys(("Group", "Row", "Span", "Trajectory"), "buffer.trajectory"),
}

__all__ = [
    "OWNER",
    "Behind",
    "BufferConfig",
    "BufferError",
    "CorruptPayload",
    "Embedded",
    "Fenced",
    "Group",
    "PartialsConfig",
    "PayloadConfig",
    "ReplayBuffer",
    "Row",
    "RunMismatch",
    "ServerFull",
    "ServerLost",
    "ServerRefused",
    "Span",
    "StalenessConfig",
    "TooLarge",
    "Trajectory",
    "TrajectoryError",
    "UnknownSchema",
    "ensure",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'buffer' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
