"""A publish that stops where it flips head, for replays of model traces: the driver says what becomes of the flip."""

import queue
import threading
from collections.abc import Mapping
from typing import Any

from tests.support.redis_server import RedisServer
from weightsync.errors import Fenced, LogLost, PublishFailed
from weightsync.log import VersionLog
from weightsync.log.records import VersionRecord
from weightsync.publisher import WeightPublisher

DEADLINE_S = 60.0
PASS, REPLY_LOST, DELAYED, KILLED = "", "reply lost", "delayed", "killed"


class Killed(BaseException):
    """The process is gone: what no handler of ours catches."""


class GatedLog:
    """A log as one trainer sees it. Without a publish that is driven, everything passes."""

    def __init__(self, log: VersionLog) -> None:
        self._log = log
        self.driven: Publishing | None = None
        self.dies_at_commit = False

    def __getattr__(self, name: str) -> Any:  # whatever the log has
        return getattr(self._log, name)

    def flip(self, base: int | None, record: VersionRecord) -> None:
        how = PASS if self.driven is None else self.driven.asks(base, record)
        if how == KILLED:
            raise Killed
        if how == DELAYED:
            raise LogLost("the flip is on its way, and nobody knows where")
        self._log.flip(base, record)
        if how == REPLY_LOST:
            raise LogLost("the answer is lost")

    def commit_anchor(self, *arguments: Any) -> None:
        if self.dies_at_commit:
            raise Killed
        self._log.commit_anchor(*arguments)


class Publishing:
    """One publish in a thread of its own. `uploaded`: it stands before its flip; `flip` lets it go on."""

    def __init__(self, publisher: WeightPublisher, log: GatedLog, version: int) -> None:
        self._publisher, self._log, self._version = publisher, log, version
        self._news: queue.Queue[tuple[str, Any]] = queue.Queue(1)
        self._orders: queue.Queue[str] = queue.Queue(1)
        self._how: str | None = None
        self.late: tuple[int | None, VersionRecord] | None = None
        log.driven = self
        self._thread = threading.Thread(target=self._run, name="publishes", daemon=True)
        self._thread.start()

    def uploaded(self) -> str:
        """ "delta" or "anchor" once all parts are put; else how the publish ended."""
        kind, news = self._news.get(timeout=DEADLINE_S)
        if kind == "flips":
            return "delta" if news.delta is not None else "anchor"
        return self._end(news)

    def flip(self, how: str) -> str:
        """How the publish ends, if this becomes of its flip."""
        self._orders.put(how, timeout=DEADLINE_S)
        return self._end(self._news.get(timeout=DEADLINE_S)[1])

    def asks(self, base: int | None, record: VersionRecord) -> str:
        """Called by the log. A retry of a flip that is lost is lost, too."""
        if self._how is None:
            self._news.put(("flips", record), timeout=DEADLINE_S)
            self._how = self._orders.get(timeout=DEADLINE_S)
            self.late = (base, record) if self._how == DELAYED else None
        return self._how

    def _end(self, news: str) -> str:
        self._log.driven = None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return news

    def _run(self) -> None:
        try:
            report = self._publisher.publish(self._version)
            end = "is head already" if report.repeated else "is head"
        except Fenced:
            end = "fenced"
        except PublishFailed as error:
            end = f"failed: {error}"
        except Killed:
            end = KILLED
        except BaseException as error:
            end = f"error: {error!r}"
        self._news.put(("ended", end), timeout=DEADLINE_S)


_VERSIONS = ("owner", "head", "records", "anchors", "merged", "nonces", "digests")


def dump(server: RedisServer, run: str) -> dict[str, bytes]:
    """What the log in Redis knows of versions now."""
    with server.client() as client:
        dumps: Any = {key: client.dump(key) for key in _keys(run)}
    return {key: found for key, found in dumps.items() if found is not None}


def restore(server: RedisServer, run: str, dumps: Mapping[str, bytes]) -> None:
    """The log loses what came after `dump`; servers and needs stay."""
    with server.client() as client:
        client.delete(*_keys(run))
        for key, found in dumps.items():
            client.restore(key, 0, found)


def _keys(run: str) -> list[str]:
    return [f"{{{run}}}:w:{name}" for name in _VERSIONS]
