"""What a publish did: the numbers for metrics and summary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, Self

from weightsync.log.records import VersionRecord


@dataclass(frozen=True)
class PublishReport:
    """What a publish did, over all ranks.

    Attributes:
        version, base: packed; base is None for a version that was published whole.
        num_bytes: put for the version itself, not for an anchor beside it.
        num_changed, num_words: words that differ from base, of words in the model.
        has_anchor: a whole set was committed for this version.
        seconds: wall time by phase: align, shards, upload, flip, advance, anchor.
        anchor_error: why an anchor that was due was not written; it is tried again with the next version.
        repeated: the version was head already, nothing was done.
    """

    version: int
    base: int | None
    kind: Literal["delta", "anchor"]
    num_bytes: int
    num_changed: int
    num_words: int
    digest: int
    has_anchor: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    anchor_error: str | None = None
    repeated: bool = False

    @classmethod
    def of(
        cls,
        record: VersionRecord,
        seconds: Mapping[str, float],
        *,
        anchored: bool = False,
        anchor_error: str | None = None,
        repeated: bool = False,
    ) -> Self:
        """The report of a version from its record."""
        put = record.delta or record.anchor
        return cls(
            version=record.version,
            base=None if record.delta is None else record.base,
            kind="anchor" if record.delta is None else "delta",
            num_bytes=0 if put is None else put.num_bytes,
            num_changed=record.num_changed,
            num_words=record.num_words,
            digest=record.digest,
            has_anchor=anchored or record.anchor is not None,
            seconds=seconds,
            anchor_error=anchor_error,
            repeated=repeated,
        )


class Clock:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = monotonic()

    def lap(self, name: str) -> None:
        """The time since the last lap goes to `name`."""
        now = monotonic()
        self.seconds[name], self._last = now - self._last, now
