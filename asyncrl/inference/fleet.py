"""Choose a server for each request by what the servers acknowledged, and go elsewhere when one has gone to sleep.

consumes  acks of servers, from weightsync's log   waits for     a server at or past the version a claim starts from
                                                   unblocked by  inference.host, acknowledge
produces  answers with spans, to rollout.episode

One fleet per worker. It knows the servers only through the log, so they come and go without it being told.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asyncrl import waits
from asyncrl.errors import ServerError, WaitTimeout
from asyncrl.inference.batching import MAX_TOKENS
from asyncrl.inference.board import Board
from asyncrl.inference.choosing import Choosing, any_version
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import FellAsleep, MalformedAnswer, ServerUnavailable
from asyncrl.inference.generated import Generated
from asyncrl.inference.member import Member
from asyncrl.inference.placing import Placing
from asyncrl.inference.protocol import Answer, Sampling
from asyncrl.inference.session import Session
from asyncrl.inference.spreading import leaving
from asyncrl.inference.waiting import WAIT, Waiter, Waiters
from asyncrl.report.kv_age import KvAge
from asyncrl.report.speeds import Served, Speeds, count
from buffer import Span
from buffer.versions import label
from weightsync.acks import Ack, serving

__all__ = ["WAIT", "Fleet", "FleetLimits", "Generated", "Session"]

LISTEN_S = 2.0  # longest stay of the listening thread, which a process waits for when it ends

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetLimits:
    """Bounds of a fleet.

    Attributes:
        request_timeout_s: seconds one generation may take.
        server_wait_s: seconds an episode waits for a server that it may use.
        max_version_skew: versions behind head at which a server is left out; None: never.
        cache_by_version: keep prefix caches of different versions apart.
        caches_outlive_updates: requests in flight keep theirs, `weightsync.kv: keep`.
        turn: a number of this worker's, see Choosing.
        rows: requests of this fleet that a server decodes at once; others wait there, and are sent elsewhere when a
            server comes that has room. None: they stay.
    """

    request_timeout_s: float
    server_wait_s: float = 3600.0
    max_version_skew: int | None = None
    cache_by_version: bool = True
    caches_outlive_updates: bool = False
    turn: int = 0
    rows: int | None = None


class Fleet:
    """The servers as one worker sees them. Bound to the event loop that `run` runs in."""

    def __init__(self, board: Board, make_client: Callable[[str], ServerClient], limits: FleetLimits) -> None:
        self._board, self._make_client, self._limits = board, make_client, limits
        self._servers: dict[str, Member] = {}
        self._placing, self._choosing = Placing(board), Choosing(limits.turn)
        self._waiters = Waiters(self.why)
        self._asked: dict[str, Session] = {}
        self._cuts: set[asyncio.Task[None]] = set()
        self.speeds = Speeds()
        """How fast the servers answer, and how long requests wait for one."""
        self.kv = KvAge()
        """How old the caches are that answers are sampled with."""

    @property
    def spared(self) -> str | None:
        """Name of a server that requests which may go elsewhere leave to those that may not."""
        return self._choosing.spared

    @spared.setter
    def spared(self, name: str | None) -> None:
        self._choosing.spared = name

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the acks until `stop` is set."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self.refresh()
                listening = asyncio.ensure_future(waits.in_thread(self._board.wait, LISTEN_S))
                await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
                if listening.done():
                    listening.result()
        finally:
            stopping.cancel()

    async def refresh(self) -> None:
        """Read acks and head now, and wake whoever waits for a server."""
        acks, self._choosing.lagging = await waits.in_thread(self._read)
        for name, member in list(self._servers.items()):
            if name not in acks or acks[name].url != member.ack.url:
                await self._servers.pop(name).left()
        before = {name: member.ack.state for name, member in self._servers.items()}
        for name, ack in acks.items():
            if name in self._servers:
                self._servers[name].acknowledged(ack)
            else:
                self._servers[name] = Member(name, ack, self._make_client(ack.url), self._changed)
            self._placing.acknowledged(ack)
        self._changed()
        if any(ack.state == "serving" != before.get(name) for name, ack in acks.items()):
            self._spread()

    def _spread(self) -> None:
        """Ask for what waits at full servers, the newest first, if others have room: it is sent there then."""
        if self._limits.rows is None:
            return
        choosing = self._choosing
        able = [
            server
            for server in self._servers.values()
            if server.name != choosing.spared and choosing.objection(server, any_version) is None
        ]
        for session in leaving(able, self._limits.rows, self._asked.values()):
            session.server = None
            cut = asyncio.create_task(self.cut(session))
            self._cuts.add(cut)
            cut.add_done_callback(self._cuts.discard)

    def _changed(self) -> None:
        self._waiters.wake(self._may_go)

    def _may_go(self, waiter: Waiter) -> bool:
        objection = self._choosing.objection
        return any(objection(server, waiter.may_start_on, waiter.only) is None for server in self._servers.values())

    def _read(self) -> tuple[Mapping[str, Ack], frozenset[str]]:
        acks, skew = self._board.acks(), self._limits.max_version_skew
        if skew is None:
            return acks, frozenset()
        near = serving(acks, self._board.versions(), skew)
        return acks, frozenset(name for name, ack in acks.items() if ack.state == "serving" and name not in near)

    async def close(self) -> None:
        """Close idle connections."""
        for server in self._servers.values():
            await server.close()

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        session: Session,
        may_start_on: Callable[[int], bool],
    ) -> Generated:
        """Ask a server that may be used to continue `token_ids`.

        Args:
            token_ids: the conversation so far, as ids.
            sampling: how to draw.
            session: of the episode; remembers its server.
            may_start_on: whether a packed version is new enough for this episode's claim.
        Raises:
            WaitTimeout: no server qualified for `server_wait_s`.
            FellAsleep: try again; the answer in flight did not come back.
            ServerUnavailable, MalformedAnswer: try again; this server is left alone until it answers a probe.
            RequestRefused: no server would take this request.
        """
        server = await self._server(session, may_start_on)
        ack = server.ack
        extra_key = label(ack.version) if self._limits.cache_by_version else None
        rid = server.client.next_rid()
        session.in_flight = (server, rid)
        if sampling.max_new_tokens > MAX_TOKENS:  # shorter ones share a request, which comes back as a whole
            self._asked[rid] = session
        start_s, before_s = time.monotonic(), server.in_flight_s(+1)
        try:
            async with server.awake():
                answer = await server.client.generate(
                    token_ids,
                    sampling,
                    extra_key=extra_key,
                    deadline_s=self._limits.request_timeout_s,
                    rid=rid,
                    watch=session.watch,
                )
            spans = await self._placing.spans(answer, ack, server.name)
        except FellAsleep:
            session.server = None
            raise
        except (ServerUnavailable, MalformedAnswer) as error:
            server.failed(error)
            session.server = None
            raise
        finally:
            after_s, seconds = server.in_flight_s(-1), max(time.monotonic() - start_s, 1e-9)
            session.in_flight = None
            self._asked.pop(rid, None)
        server.answered()
        self._count_cache(answer, ack, len(token_ids), spans)
        count(self.speeds.served, Served(1, len(answer.token_ids), seconds, (after_s - before_s) / seconds))
        return Generated(answer.token_ids, answer.logprobs, answer.finish_reason, spans, server.name, answer.experts)

    def _count_cache(self, answer: Answer, ack: Ack, num_prompt: int, spans: Sequence[Span]) -> None:
        self.kv.prompt += num_prompt
        self.kv.reused += min(num_prompt, answer.num_cached)
        if self._limits.cache_by_version:  # else nobody knows what the cache was made with
            runs = [(span.version, span.num_tokens) for span in spans]
            self.kv.count(ack.version, runs, kept=self._limits.caches_outlive_updates)

    async def cut(self, session: Session) -> None:
        """Ask for the answer in flight as far as it is: it comes as any answer does, with finish_reason abort.

        A server that cannot be asked, or that does not know the request yet, answers when it is done.
        """
        if session.in_flight is None:
            return
        server, rid = session.in_flight
        try:
            await server.client.abort(rid)
        except ServerError as error:
            log.info("a request at %s could not be cut and ends by itself: %s", server.name, error)

    @property
    def num_servers(self) -> int:
        """Servers that have acknowledged a version."""
        return len(self._servers)

    def num_in_flight(self) -> dict[str, int]:
        """Requests of this worker by server."""
        return {server.name: server.num_in_flight for server in self._servers.values()}

    def why(self, may_start_on: Callable[[int], bool] = any_version, only: str | None = None) -> str:
        """Why no server qualifies, one reason for each."""
        if not self._servers:
            return "no server has acknowledged a version; is serve-rollout running, and what do its hosts' logs say?"
        return "; ".join(
            f"{server.name}: {self._choosing.objection(server, may_start_on, only) or 'qualifies'}"
            for server in self._servers.values()
        )

    def _choose(self, session: Session, may_start_on: Callable[[int], bool]) -> Member | None:
        return self._choosing.choose(self._servers.values(), session, may_start_on)

    async def _server(self, session: Session, may_start_on: Callable[[int], bool]) -> Member:
        chosen = self._choose(session, may_start_on)
        if chosen is not None:
            return chosen
        started = time.monotonic()
        with self._waiters.one_more(may_start_on, session.only) as waiter:
            while chosen is None:
                waited_s = time.monotonic() - started
                if waited_s >= self._limits.server_wait_s:
                    raise WaitTimeout(WAIT, waited_s, self._limits.server_wait_s, self.why(may_start_on, session.only))
                if self._waiters.is_reminder_due():
                    log.warning("%s: %.0f s so far. %s", WAIT, waited_s, self.why(may_start_on, session.only))
                await waiter.until_woken(self._limits.server_wait_s)
                chosen = self._choose(session, may_start_on)
        self.speeds.waited.add(time.monotonic() - started)
        return chosen
