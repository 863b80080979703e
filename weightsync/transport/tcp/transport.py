"""The transport that leaves parts with their writers: a rank announces its part server in the log, readers ask it.

Who announced serves; who did not only asks. A part of a rank is asked for at the address that the log has for that
rank: a trainer that starts again says a new one, and what the old process had is then missing.
"""

import logging
import threading
from collections.abc import Collection, Iterator, Sequence

from weightsync.config import WeightsyncConfig
from weightsync.errors import PartMissing, TransportError
from weightsync.log.base import VersionLog
from weightsync.transport.base import Deadline, split_key, upload_prefix
from weightsync.transport.tcp.address import url_of
from weightsync.transport.tcp.client import PartClient
from weightsync.transport.tcp.greeting import secret_of
from weightsync.transport.tcp.memory import PartMemory
from weightsync.transport.tcp.server import PartServer

logger = logging.getLogger(__name__)

_TIDY_S = 60.0  # for a delete or a listing at one rank, which have no deadline of their own


class TcpTransport:
    """Transport over direct connections. Thread-safe."""

    parts_outlive_writer = False
    parallel_gets = 2

    def __init__(self, config: WeightsyncConfig, log: VersionLog) -> None:
        """`log` is this transport's own: `close` closes it."""
        self._config, self._log = config.tcp, log
        self._secret = secret_of(config.seal_key(), log.run)
        self._memory = PartMemory(config.tcp.keep_bytes, self._needed)
        self._server: PartServer | None = None
        self._announced: tuple[int, int, str] | None = None
        self._told_for: str | None = None
        self._known: dict[int, str] = {}
        self._clients: dict[str, PartClient] = {}
        self._lock = threading.Lock()

    def announce(self, branch: int, rank: int) -> None:
        with self._lock:
            if self._server is None:
                self._server = PartServer(self._memory, self._secret, self._config)
            self._announced = branch, rank, url_of(self._config, self._server.port)
        self._log.put_endpoint(*self._announced)
        bound = f"{self._config.bind} port {self._server.port}"
        logger.info("weightsync: rank %d listens on %s and is read at %s", rank, bound, self._announced[2])

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        Deadline(deadline_s, f"put of part {key}").check()
        if self._server is None or self._announced is None:
            raise TransportError(
                f"part {key} is put by a process that announced no rank: nobody could get it. Only a publisher that "
                "claimed a branch puts parts over tcp."
            )
        self._server.check()
        self._memory.put(key, parts)
        upload, _ = split_key(key)
        if self._told_for != upload:
            # Once per upload: a log that lost its tail hears it again.
            self._log.put_endpoint(*self._announced)
            self._told_for = upload

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        deadline = Deadline(deadline_s, f"get of part {key}")
        deadline.check()
        view = target.cast("B")
        if self._memory.copy_into(key, view):
            return len(view)
        rank = _rank_of(key)
        last: TransportError | None = None
        for url in self._urls_of(rank):
            try:
                self._client(url).get_into(key, view, deadline)
                return len(view)
            except TransportError as error:
                last = error
        raise last or PartMissing(
            f"part {key} is nowhere: rank {rank} of the trainer is this process and does not have it, or its trainer "
            "has not said in the log where it is. A trainer says that with every version."
        )

    def delete(self, prefix: str) -> int:
        count, failed = self._memory.delete(prefix), None
        for client in self._others():
            try:
                count += client.delete(prefix, Deadline(_TIDY_S, f"delete of {prefix} at {client.url}"))
            except TransportError as error:
                failed = error  # the others can be asked all the same
        if failed is not None:
            raise failed
        return count

    def uploads(self, prefix: str) -> list[str]:
        found = set(self._memory.uploads(prefix))
        for client in self._others():
            found.update(client.uploads(prefix, Deadline(_TIDY_S, f"listing of {prefix} at {client.url}")))
        return sorted(found)

    def close(self) -> None:
        """Ends the part server: what this process put is gone."""
        with self._lock:
            server, self._server, self._announced = self._server, None, None
            clients, self._clients = self._clients, {}
        if server is not None:
            server.close()
        for client in clients.values():
            client.close()
        self._log.close()

    def _urls_of(self, rank: int) -> Iterator[str]:
        """Where the rank's parts were when it was last looked up, and where the log says now, if that is another."""
        tried = self._known.get(rank)
        if tried is not None and tried != self._own_url:
            yield tried
        self._known = self._log.endpoints()
        url = self._known.get(rank)
        if url is not None and url not in (tried, self._own_url):
            yield url

    def _others(self) -> list[PartClient]:
        urls = {url for url in self._log.endpoints().values() if url != self._own_url}
        return [self._client(url) for url in sorted(urls)]

    @property
    def _own_url(self) -> str | None:
        announced = self._announced
        return None if announced is None else announced[2]

    def _client(self, url: str) -> PartClient:
        with self._lock:
            if url not in self._clients:
                for old in set(self._clients) - set(self._known.values()):
                    self._clients.pop(old).close()
                self._clients[url] = PartClient(url, self._secret, self._config.stall_s)
            return self._clients[url]

    def _needed(self) -> Collection[str]:
        """Prefixes of the uploads that make head from its newest whole version on."""
        records = self._log.records()
        whole = max((i for i, record in enumerate(records) if record.whole), default=0)
        chain = records[whole:]
        return {upload_prefix(self._log.run, upload) for record in chain for upload in record.uploads()}


def _rank_of(key: str) -> int:
    return int(split_key(key)[1].partition(":")[0])
