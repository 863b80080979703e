"""A gateway that listens, over a buffer in memory and a cheap engine, with the test as trainer and as harness."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from asyncrl.config import GatewayConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.tools.parsers import PARSERS
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.fleet import Fleet, FleetLimits
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.rollout.group import GroupSettings
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.reservation import Prompts
from asyncrl.rollout.worker import Worker, WorkerSettings
from asyncrl.run.http_server import listen, serving, url_of
from buffer import ReplayBuffer
from tests.support.ascii_chat import VOCAB, AsciiChat, encode
from tests.support.episode_settings import episode_settings

KEY = "gw-0f6c21"
SIGN = "~"
SIGN_ID = encode(SIGN)[0]
"""The engine of tests answers what a message has behind its last sign."""
GROUP = 2


def sort_rows(count: int) -> list[PromptRow]:
    """Prompts to sort digits, which the table scores."""
    return [
        PromptRow(i, "sort_digits", ({"role": "user", "content": f"sort {31 + i}"},), "".join(sorted(str(31 + i))), {})
        for i in range(count)
    ]


@dataclass
class GatewayScene:
    """A gateway at work.

    Attributes:
        http: a client of its address, without a key.
        stop: ends it.
    """

    gateway: Gateway
    worker: Worker
    buffer: ReplayBuffer
    http: httpx.AsyncClient
    stop: asyncio.Event

    async def post(self, path: str, body: Any = None, key: str = KEY, **headers: str) -> httpx.Response:
        """A request with a key."""
        sent = {"authorization": f"Bearer {key}", **{name.replace("_", "-"): text for name, text in headers.items()}}
        return await self.http.post(path, json={} if body is None else body, headers=sent)

    async def reserve(self, wait_s: float = 10.0) -> dict[str, Any]:
        """A session of a reserved group."""
        reply = await self.post("/sessions", {"wait_s": wait_s})
        assert reply.status_code == 201, reply.text
        return dict(reply.json())

    async def chat(self, session: dict[str, Any], messages: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """The message that a turn of OpenAI's protocol has."""
        body = {"model": "any", "messages": list(messages), **fields}
        reply = await self.post("/v1/chat/completions", body, key=session["api_key"])
        assert reply.status_code == 200, reply.text
        return dict(reply.json()["choices"][0]["message"])

    async def end(self, session: dict[str, Any], **body: Any) -> httpx.Response:
        """End a session."""
        return await self.post(f"/sessions/{session['id']}/end", body)


@asynccontextmanager
async def running_gateway(
    buffer: ReplayBuffer,
    urls: Sequence[str],
    *,
    version: int,
    groups: GroupSettings | None = None,
    stop_timeout_s: float = 0.2,
    timeout_s: float = 30.0,
    **config: Any,
) -> AsyncIterator[GatewayScene]:
    """One for the block, stopped in good order at its end; `config` are keys of the section gateway."""
    chat, settings = AsciiChat(), GatewayConfig(**config)
    fleet = Fleet(
        FixedBoard(list(urls), version=version),
        lambda url: ServerClient(url, vocab_size=VOCAB),
        FleetLimits(request_timeout_s=10.0, server_wait_s=10.0),
    )
    rewards = RewardPool(1, 10.0)
    gateway = Gateway(
        settings,
        key=KEY,
        chat=chat,
        fleet=fleet,
        sampling=episode_settings(context_length=4096, max_new_tokens=512),
        rewards=rewards,
        parser=PARSERS["hermes"],
        buffer=buffer,
        group_size=GROUP,
        max_trajectory_bytes=1 << 22,
        worker="gateway-0",
    )
    rows = sort_rows(10)
    worker = Worker(
        name="gateway-0",
        buffer=buffer,
        fleet=fleet,
        player=gateway.player,
        train=Prompts(rows, PromptOrder(len(rows), 0, False), GROUP),
        held_out=Prompts(rows[:1], PromptOrder(1, 0, False), 1),
        settings=WorkerSettings(
            slots=settings.max_sessions,
            groups=groups or GroupSettings(renew_every_s=15.0, parks_when_given_back=False),
            stop_timeout_s=stop_timeout_s,
            park_timeout_s=2.0,
            sweep_every_s=0.0,
            report_every_s=0.05,
            recheck_s=0.02,
        ),
        slots=gateway.demand,
        more_facts=gateway.facts,
    )
    gateway.why_none = worker.why_not_admitted
    stop = asyncio.Event()
    with listen("127.0.0.1", 0, "gateway") as bound:
        gateway.url = url_of(bound)
        async with serving(gateway.app, bound), httpx.AsyncClient(base_url=gateway.url, timeout=timeout_s) as http:
            working = asyncio.create_task(worker.run(stop))
            try:
                yield GatewayScene(gateway, worker, buffer, http, stop)
            finally:
                stop.set()
                await working
                await gateway.online.settle(5.0)
                rewards.close()
