"""A reward model behind a URL: POST an answer with its row as JSON, get its score back.

The request is verl's arguments, {"data_source", "solution_str", "ground_truth", "extra_info"}, and the row's messages
as "prompt". The reply is {"score": number, ...}; further numbers are parts of the reward. Whatever else comes, or comes
too late, is a reward that failed, with its reason: it masks the answer and is counted, and never becomes a number.
"""

import asyncio
import json
from collections.abc import Sequence

import httpx

from asyncrl.config.reward import RewardServerConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import excerpt
from asyncrl.envs.rewards.result import Reward, reward_from
from asyncrl.errors import RewardError
from asyncrl.waits import doubling, pause, timed

MAX_BYTES = 1 << 20  # of a reply; a score takes a few dozen
RETRIED = (408, 425, 429, 500, 502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0  # before a request is sent again
ROOM = "episode waits for room at a reward server"
RETRY = "episode waits before it asks a reward server again"


class _Again(Exception):
    """The request may succeed when it is sent again."""


class RewardServer:
    """One reward server. Bound to the event loop that it is used in.

    Args:
        config: its address and bounds.
        timeout_s: seconds one request may take.
    """

    def __init__(self, config: RewardServerConfig, timeout_s: float) -> None:
        self.data_sources = config.data_sources
        self._config, self._timeout_s = config, timeout_s
        limits = httpx.Limits(max_connections=config.in_flight, max_keepalive_connections=config.in_flight)
        # No proxies of the environment: rewards go where the configuration says.
        self._http = httpx.AsyncClient(timeout=timeout_s, limits=limits, trust_env=False)
        self._room = asyncio.Semaphore(config.in_flight)

    def takes(self, data_source: str) -> bool:
        """Whether it scores answers of this source."""
        return not self.data_sources or data_source in self.data_sources

    async def score(self, row: PromptRow, text: str) -> tuple[str, Reward]:
        """How it went (scored, timeout, unreachable, refused, bad_reply) and the reward, which has an error then."""
        job = {
            "data_source": row.data_source,
            "prompt": [dict(message) for message in row.messages],
            "solution_str": text,
            "ground_truth": row.ground_truth,
            "extra_info": dict(row.extra_info),
        }
        kind, error, pauses_s = "unreachable", "", doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        with timed(ROOM, lambda: f"{self._config.url} has {self._config.in_flight} requests of this worker"):
            await self._room.acquire()
        try:
            for attempt in range(self._config.max_attempts):
                if attempt:
                    await pause(RETRY, next(pauses_s))
                try:
                    return "scored", await self._ask(job)
                except RewardError as found:
                    return "bad_reply", Reward(None, f"bad_reply: {found}")
                except httpx.HTTPStatusError as found:
                    return "refused", Reward(None, f"refused: {found}")
                except TimeoutError:
                    kind, error = "timeout", f"no reply of {self._config.url} in {self._timeout_s:g} s"
                except (_Again, httpx.HTTPError) as found:
                    kind, error = "unreachable", f"{self._config.url}: {type(found).__name__}: {found}"
        finally:
            self._room.release()
        return kind, Reward(None, f"{kind}: {self._config.max_attempts} attempts; the last: {error}")

    async def close(self) -> None:
        """Close connections; requests in flight fail."""
        await self._http.aclose()

    async def _ask(self, job: dict[str, object]) -> Reward:
        url = self._config.url
        async with asyncio.timeout(self._timeout_s), self._http.stream("POST", url, json=job) as reply:
            body = await _limited(reply, url)
        if reply.status_code in RETRIED:
            raise _Again(f"status {reply.status_code}: {excerpt(body.decode('utf-8', 'replace'))}")
        if reply.status_code != 200:
            text = f"{url}: status {reply.status_code}: {excerpt(body.decode('utf-8', 'replace'))}"
            raise httpx.HTTPStatusError(text, request=reply.request, response=reply)
        try:
            returned = json.loads(body)
        except (ValueError, RecursionError):
            raise RewardError(f"{url} answered {excerpt(body.decode('utf-8', 'replace'))}, which is no JSON") from None
        return reward_from(returned, url)


def server_of(servers: Sequence[RewardServer], data_source: str) -> RewardServer | None:
    """The first server that takes the source; None: another kind of reward scores it."""
    return next((server for server in servers if server.takes(data_source)), None)


async def _limited(reply: httpx.Response, url: str) -> bytes:
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise RewardError(f"{url} answered more than {MAX_BYTES} bytes, expected a score")
    return bytes(body)
