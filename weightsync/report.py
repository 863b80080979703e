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
        seconds: wall time by phase: capture (if the words were captured before), align, upload, flip, advance, anchor,
            merge.
        anchor_error: why an anchor that was due was not written; it is tried again with the next version.
        repeated: the version was head already, nothing was done.
        num_merged_bytes: put for a merged delta that leads to this version, for servers that are behind.
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
    num_merged_bytes: int = 0

    @classmethod
    def of(
        cls,
        record: VersionRecord,
        seconds: Mapping[str, float],
        *,
        anchored: bool = False,
        anchor_error: str | None = None,
        repeated: bool = False,
        num_merged_bytes: int = 0,
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
            num_merged_bytes=num_merged_bytes,
        )


class Clock:
    """Seconds by phase; `phase` is the one that goes on, for whoever waits for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.phase = ""
        self._last = monotonic()

    def begin(self, phase: str) -> None:
        """The time since the last call was the last phase's."""
        now = monotonic()
        if self.phase:
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._last
        self.phase, self._last = phase, now

    def end(self) -> dict[str, float]:
        """The last phase is over; seconds of all."""
        self.begin("")
        return self.seconds
