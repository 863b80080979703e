"""The replay buffer: groups of trajectories travel from the rollout cluster to the trainer cluster, each exactly once.

Names are imported when first used, so that `import buffer` stays light: no redis, no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buffer.answers import Claim, Entry, Leased, NotAdmitted, NotReady, RenewAnswer
    from buffer.audit import Audit
    from buffer.config import BufferConfig, PayloadConfig, StalenessConfig
    from buffer.embedded import Embedded, ensure
    from buffer.errors import (
        Behind,
        BudgetTooSmall,
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
    from buffer.lineage import Ledger
    from buffer.replay_buffer import ReplayBuffer
    from buffer.run_record import RunRecord
    from buffer.trajectory import Group, Row, Span, Trajectory
    from buffer.versions import label, pack, parse_label, unpack

OWNER = "asyncrl"
"""Whose package this is: PyPI has another `buffer`, and pip lets one overwrite the other without a word."""

_NAMES = {
    "answers": ("Claim", "Entry", "Leased", "NotAdmitted", "NotReady", "RenewAnswer"),
    "audit": ("Audit",),
    "config": ("BufferConfig", "PayloadConfig", "StalenessConfig"),
    "embedded": ("Embedded", "ensure"),
    "errors": (
        "Behind",
        "BudgetTooSmall",
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
    "lineage": ("Ledger",),
    "replay_buffer": ("ReplayBuffer",),
    "run_record": ("RunRecord",),
    "trajectory": ("Group", "Row", "Span", "Trajectory"),
    "versions": ("label", "pack", "parse_label", "unpack"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "OWNER",
    "Audit",
    "Behind",
    "BudgetTooSmall",
    "BufferConfig",
    "BufferError",
    "Claim",
    "CorruptPayload",
    "Embedded",
    "Entry",
    "Fenced",
    "Group",
    "Leased",
    "Ledger",
    "NotAdmitted",
    "NotReady",
    "PayloadConfig",
    "RenewAnswer",
    "ReplayBuffer",
    "Row",
    "RunMismatch",
    "RunRecord",
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
    "label",
    "pack",
    "parse_label",
    "unpack",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'buffer' has no attribute {name!r}")
    return getattr(import_module(f"buffer.{_HOME[name]}"), name)
