"""A gateway made of its parts: what a worker plays episodes with, and the application that harnesses speak to.

consumes  requests of harnesses            waits for     a server at the claim's version
                                           unblocked by  inference.host, acknowledge
produces  trajectories, to rollout.group   unblocks      the harnesses that ask for sessions
"""

import logging
from collections import Counter
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.types import ASGIApp

from asyncrl import waits
from asyncrl.config import GatewayConfig
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.tools.parsers import ToolCallParser
from asyncrl.rollout.episode import Chat
from asyncrl.rollout.gateway.access import Access
from asyncrl.rollout.gateway.exchange import Bodies
from asyncrl.rollout.gateway.harness_demand import HarnessDemand
from asyncrl.rollout.gateway.online import OnlineGroups, online_task
from asyncrl.rollout.gateway.protocol_routes import ProtocolRoutes
from asyncrl.rollout.gateway.session import Session
from asyncrl.rollout.gateway.session_player import PlaySettings, SessionPlayer
from asyncrl.rollout.gateway.session_routes import SessionRoutes
from asyncrl.rollout.gateway.session_turns import SessionTurns
from asyncrl.rollout.gateway.sessions import SessionLimits, Sessions
from asyncrl.rollout.gateway.turn_dispatch import TurnDispatch
from asyncrl.rollout.gateway.turn_planning import TurnPlanner
from asyncrl.rollout.gateway.turn_taking import TurnSettings, TurnTaker
from asyncrl.rollout.turns import EpisodeSettings, Generator
from buffer import ReplayBuffer

LOOK_EVERY_S = 5.0
ONLINE = "online"
"""Data source of online sessions that name none."""

log = logging.getLogger(__name__)


class Gateway:
    """The sessions of one process, and the ways to them.

    Args:
        key: the gateway's, which opens sessions and rewards them.
        sampling: how the run samples.
        group_size: trajectories of a group, for online sessions.
        parser: of tool calls.
        worker: name under which online groups are put.
        streams: whether servers show answers before they are whole; else a stream's pieces are requests.
        max_trajectory_bytes: what the buffer takes of one, if its group is full of such. None: what the gateway does.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        key: str,
        chat: Chat,
        fleet: Generator,
        sampling: EpisodeSettings,
        rewards: RewardPool,
        parser: ToolCallParser,
        buffer: ReplayBuffer,
        group_size: int,
        worker: str,
        streams: bool = True,
        max_trajectory_bytes: int | None = None,
    ) -> None:
        self._config = config
        self.url = config.public_url or ""
        """Where harnesses reach it; set once it listens, if the configuration does not say."""
        self.counts: Counter[str] = Counter()
        self.why_none: Callable[[], str] = lambda: "the worker has not started"
        """Why no session can be reserved."""
        self.sessions = Sessions(
            SessionLimits(
                max_sessions=config.max_sessions,
                max_bytes=config.max_bytes,
                max_session_bytes=config.max_session_bytes or max_trajectory_bytes or config.max_bytes,
                max_turns_in_flight=config.max_turns_in_flight,
            )
        )
        self.demand = HarnessDemand(config.max_sessions)
        self.online = OnlineGroups(
            buffer,
            worker,
            self.sessions,
            self.counts,
            group_size=group_size,
            admission_wait_s=config.online_timeout_s,
        )
        self.player = SessionPlayer(
            self.sessions,
            self.demand,
            rewards,
            PlaySettings(config.offer_timeout_s, config.session_timeout_s, config.idle_timeout_s),
            self.counts,
        )
        self._turns = SessionTurns(
            self.sessions,
            TurnPlanner(chat, self.counts, context_length=sampling.context_length, max_rows=config.max_rows),
            TurnTaker(chat, fleet, sampling, _turn_settings(config, streams), parser, self.counts),
        )
        self.app = self._app(key)

    def facts(self) -> dict[str, float | str]:
        """What it holds now, for people."""
        return {
            "sessions_open": len(self.sessions),
            "sessions_offered": self.demand.num_offered,
            "sessions_online_rewarded": self.online.num_waiting,
            "harnesses_waiting": self.demand.num_asking,
            "turns_in_flight": self.sessions.num_in_flight,
            "session_bytes": self.sessions.num_bytes,
        }

    async def expire(self) -> None:
        """Drop online sessions that nobody uses, again and again until it is cancelled."""
        while True:
            await waits.pause("gateway looks for sessions that nobody uses", LOOK_EVERY_S)
            for session in self.sessions.idle_for(self._config.online_timeout_s, "online"):
                if session in self.online and not self.online.drop(session):
                    continue
                self.counts["sessions_expired"] += 1
                log.warning(
                    "online session %s is dropped: no turn, no reward and no others of its group for "
                    "gateway.online_timeout_s = %g s",
                    session.id,
                    self._config.online_timeout_s,
                )
                self.sessions.close(session)

    def close(self) -> None:
        """Close what is still open: whoever waits for an answer is told so."""
        for session in self.sessions:
            self.sessions.close(session)

    def _open_online(self, name: str = "", group: str = "", data_source: str = "") -> Session:
        session = self.sessions.open(
            lambda id: online_task(id, data_source or ONLINE), "online", name=name, group=group
        )
        self.counts["sessions_online"] += 1
        return session

    def _app(self, key: str) -> ASGIApp:
        access = Access(key, self.sessions, self._open_online)
        bodies = Bodies(self._config.max_body_bytes, self._config.max_bytes)
        protocols = ProtocolRoutes(access, self._turns, bodies, model_name=self._config.model_name)
        runners = SessionRoutes(
            access,
            self.sessions,
            self.demand,
            self.online,
            self._open_online,
            base_url=lambda: self.url,
            why_none=lambda: self.why_none(),
        )
        return TurnDispatch(protocols.turns(), Starlette(routes=[*protocols.routes(), *runners.routes()]))


def _turn_settings(config: GatewayConfig, streams: bool) -> TurnSettings:
    return TurnSettings(
        model_name=config.model_name,
        timeout_s=config.turn_timeout_s,
        stream_tokens=config.stream_tokens,
        splits_thoughts=config.splits_thoughts,
        refuses_other_sampling=config.other_sampling == "refuse",
        pieces_are_requests=not streams,
    )
