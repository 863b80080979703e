"""What a fleet knows of the servers: what they acknowledged, in weightsync's log or as a fixed list."""

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from weightsync.acks import Ack
from weightsync.log.base import VersionLog


class Board(Protocol):
    """Blocking and thread-safe. LogBoard reads the run's log; FixedBoard stands for servers that nobody updates."""

    def acks(self) -> Mapping[str, Ack]:
        """What each living server acknowledged, by its name."""

    def versions(self) -> Sequence[int]:
        """Published versions, packed, ascending; the last is head."""

    def digest_of(self, version: int) -> int | None:
        """Digest of a version that was published once."""

    def wait(self, deadline_s: float) -> bool:
        """Block until something changed since the last call, or the deadline."""


class LogBoard:
    """The board of a run: weightsync's VersionLog."""

    def __init__(self, log: VersionLog) -> None:
        self._log, self._watch = log, log.watch(("server", "head"))

    def acks(self) -> Mapping[str, Ack]:
        """What each living server acknowledged, by its name."""
        return self._log.acks()

    def versions(self) -> Sequence[int]:
        """Published versions, packed, ascending; the last is head."""
        return [record.version for record in self._log.records()]

    def digest_of(self, version: int) -> int | None:
        """Digest of a version that was published once."""
        return self._log.digest_of(version)

    def wait(self, deadline_s: float) -> bool:
        """Block until something changed since the last call, or the deadline."""
        return self._watch.wait(deadline_s)


class FixedBoard:
    """Servers whose weights nobody changes, all at one version; what `asyncrl eval` plays on."""

    def __init__(self, urls: Sequence[str], *, version: int = 0, digest: int = 0) -> None:
        self._acks = {
            f"server-{index}": Ack(version, digest, incarnation="", state="serving", url=url, age_s=0.0)
            for index, url in enumerate(urls)
        }
        self._version, self._digest = version, digest
        self._never = threading.Event()

    def acks(self) -> Mapping[str, Ack]:
        """The servers."""
        return self._acks

    def versions(self) -> Sequence[int]:
        """Their version."""
        return (self._version,)

    def digest_of(self, version: int) -> int | None:
        """The digest of their version."""
        return self._digest if version == self._version else None

    def wait(self, deadline_s: float) -> bool:
        """Nothing ever changes: blocks until the deadline."""
        return self._never.wait(deadline_s)
