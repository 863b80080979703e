"""Weight sync: versions of the policy travel from the trainer's ranks to the inference servers, bit for bit.

Names are imported when first used, so that `import weightsync` stays light: no torch, no redis, no numba. What needs
torch is best imported from its own module: weightsync.publisher, weightsync.shard, weightsync.sglang_loader.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightsync.acks import Ack, serving
    from weightsync.config import WeightsyncConfig
    from weightsync.errors import (
        BaseMismatch,
        ChainBroken,
        CorruptDelta,
        DigestMismatch,
        Fenced,
        LayoutMismatch,
        LogLost,
        ModelDirError,
        OriginMismatch,
        PublishFailed,
        ShardError,
        StaleIncarnation,
        TransportError,
        WeightsyncError,
    )
    from weightsync.log import VersionLog, open_log
    from weightsync.manifest import Manifest
    from weightsync.receiver import UPDATE_BODY, Receiver
    from weightsync.report import PublishReport
    from weightsync.ticket import Ticket
    from weightsync.transport import Transport, open_transport

OWNER = "asyncrl"
"""Whose package this is, for the check that no other distribution wrote into its folder."""

_ERRORS = (
    *("BaseMismatch", "ChainBroken", "CorruptDelta", "DigestMismatch", "Fenced", "LayoutMismatch", "LogLost"),
    *("ModelDirError", "OriginMismatch", "PublishFailed", "ShardError", "StaleIncarnation", "TransportError"),
    "WeightsyncError",
)
_HOME = {
    **dict.fromkeys(_ERRORS, "weightsync.errors"),
    **dict.fromkeys(("Ack", "serving"), "weightsync.acks"),
    **dict.fromkeys(("Receiver", "UPDATE_BODY"), "weightsync.receiver"),
    **dict.fromkeys(("Transport", "open_transport"), "weightsync.transport"),
    **dict.fromkeys(("VersionLog", "open_log"), "weightsync.log"),
    "Manifest": "weightsync.manifest",
    "PublishReport": "weightsync.report",
    "Ticket": "weightsync.ticket",
    "WeightsyncConfig": "weightsync.config",
    # Not in the block for type checkers: naming them there would make everything that reads the settings reach torch.
    "WeightPublisher": "weightsync.publisher",
    "shards_of": "weightsync.shard",
}

__all__ = [
    "OWNER",
    "UPDATE_BODY",
    "Ack",
    "BaseMismatch",
    "ChainBroken",
    "CorruptDelta",
    "DigestMismatch",
    "Fenced",
    "LayoutMismatch",
    "LogLost",
    "Manifest",
    "ModelDirError",
    "OriginMismatch",
    "PublishFailed",
    "PublishReport",
    "Receiver",
    "ShardError",
    "StaleIncarnation",
    "Ticket",
    "Transport",
    "TransportError",
    "VersionLog",
    "WeightsyncConfig",
    "WeightsyncError",
    "open_log",
    "open_transport",
    "serving",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'weightsync' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
