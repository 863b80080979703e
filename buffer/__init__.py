"""The replay buffer: groups of trajectories travel from the rollout cluster to the trainer cluster, each exactly once.

Names are imported when first used, so that `import buffer` stays light: no redis, no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buffer.answers import (
        Claim,
        DeadLetter,
        Entry,
        Leased,
        LeftGroup,
        NotAdmitted,
        NotReady,
        Parked,
        RenewAnswer,
        StaleGroup,
        SweepReport,
    )
    from buffer.audit import Audit
    from buffer.config import BufferConfig, PayloadConfig, StalenessConfig
    from buffer.draws import Draw, PassRate
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
    from buffer.hints import Hints
    from buffer.lineage import Ledger
    from buffer.operator_side import HeldGroup
    from buffer.partials import UNFINISHED, PartialEpisode, Partials
    from buffer.replay_buffer import ReplayBuffer
    from buffer.row import Row, Span
    from buffer.run_record import RunRecord
    from buffer.status import HeldClaim, Status, Usage
    from buffer.tokens import TokenLedger
    from buffer.trajectory import Group, Trajectory
    from buffer.versions import label, pack, parse_label, unpack

OWNER = "asyncrl"
"""Whose package this is: PyPI has another `buffer`, and pip lets one overwrite the other without a word."""

_NAMES = {
    "answers": (
        "Claim",
        "DeadLetter",
        "Entry",
        "Leased",
        "LeftGroup",
        "NotAdmitted",
        "NotReady",
        "Parked",
        "RenewAnswer",
        "StaleGroup",
        "SweepReport",
    ),
    "audit": ("Audit",),
    "config": ("BufferConfig", "PayloadConfig", "StalenessConfig"),
    "draws": ("Draw", "PassRate"),
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
    "hints": ("Hints",),
    "lineage": ("Ledger",),
    "operator_side": ("HeldGroup",),
    "partials": ("UNFINISHED", "PartialEpisode", "Partials"),
    "replay_buffer": ("ReplayBuffer",),
    "row": ("Row", "Span"),
    "run_record": ("RunRecord",),
    "status": ("HeldClaim", "Status", "Usage"),
    "tokens": ("TokenLedger",),
    "trajectory": ("Group", "Trajectory"),
    "versions": ("label", "pack", "parse_label", "unpack"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "OWNER",
    "UNFINISHED",
    "Audit",
    "Behind",
    "BudgetTooSmall",
    "BufferConfig",
    "BufferError",
    "Claim",
    "CorruptPayload",
    "DeadLetter",
    "Draw",
    "Embedded",
    "Entry",
    "Fenced",
    "Group",
    "HeldClaim",
    "HeldGroup",
    "Hints",
    "Leased",
    "Ledger",
    "LeftGroup",
    "NotAdmitted",
    "NotReady",
    "Parked",
    "PartialEpisode",
    "Partials",
    "PassRate",
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
    "StaleGroup",
    "StalenessConfig",
    "Status",
    "SweepReport",
    "TokenLedger",
    "TooLarge",
    "Trajectory",
    "TrajectoryError",
    "UnknownSchema",
    "Usage",
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
