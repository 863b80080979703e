"""Where this trainer stands in the tree of versions, and what it knows of the weights behind each token."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from buffer import Group
from buffer.versions import Forks, distance, label, pack, parse_label

MAX_KNOWN = 4096
"""Digests that are remembered; older ones are looked up in the log of versions."""


@dataclass
class Lineage:
    """The trainer's branch, its number there, and the step it has finished.

    Attributes:
        forks: branch -> (its parent, the number at which it left it), of every branch that groups may come from.
        digests: packed version -> digest of its weights, as this lineage published them or was told by the log.
        spent_before_s: seconds of training up to the checkpoint that this trainer began from.
    """

    branch: int
    number: int
    step: int
    forks: Forks = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)
    spent_before_s: float = 0.0
    _began_s: float = field(default_factory=time.monotonic)

    def spent_s(self) -> float:
        """Seconds of training along this lineage; what was trained behind a checkpoint and lost is not in it."""
        return self.spent_before_s + time.monotonic() - self._began_s

    @property
    def version(self) -> int:
        """Packed version of the weights that are trained now."""
        return pack(self.branch, self.number)

    def lag_of(self, version: int) -> int:
        """Versions between `version` and the trainer's, along the tree.

        A branch that nobody knows shares nothing but the root with ours, as the ledger reckons too.
        """
        branch = version >> 32
        known = branch == 0 or branch in self.forks
        forks = self.forks if known else {**self.forks, branch: (0, 0)}
        return distance(forks, self.version, version)

    def remember(self, version: int, digest: int) -> None:
        """Note the digest of a version."""
        self.digests[version] = digest
        while len(self.digests) > MAX_KNOWN:
            del self.digests[next(iter(self.digests))]

    def foreign_span(self, group: Group, look_up: Callable[[int], int | None]) -> str:
        """Why a group must not be trained on: a span whose weights no trainer of this run published; empty if none.

        Args:
            look_up: digest of a version in the log, or None. A span without a digest (0) is taken only if the log has
                none either.
        """
        spans = {(span.version, span.digest) for t in group.trajectories for row in t.rows for span in row.spans}
        for version, digest in sorted(spans):
            known = self.digests.get(version)
            if known is None:
                known = look_up(version)
                if known is not None:
                    self.remember(version, known)
            if digest != (known or 0):
                expected = "no such version" if known is None else f"digest {known:016x}"
                return (
                    f"group {group.gid} has tokens of version {label(version)} with digest {digest:016x}, the log of "
                    f"versions knows {expected}"
                )
        return ""


def digests_to_json(digests: Mapping[int, int]) -> dict[str, str]:
    """Labels and hex digits, for a checkpoint."""
    return {label(version): f"{digest:016x}" for version, digest in digests.items()}


def digests_from_json(stored: Mapping[str, str]) -> dict[int, int]:
    """What digests_to_json wrote."""
    return {parse_label(name): int(digest, 16) for name, digest in stored.items()}
