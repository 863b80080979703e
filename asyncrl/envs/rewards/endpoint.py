"""Asking a scorer behind a URL: room, limits per minute, a time for each request, a few attempts, and one outcome.

consumes  a request, from a scorer over HTTP   waits for     room, and its limits per minute
produces  an Outcome                           unblocked by  other replies; a minute that passes
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from asyncrl.data.values import excerpt
from asyncrl.envs.rewards.limits import MinuteLimits
from asyncrl.envs.rewards.processes import QUEUE_CALLS
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.scorer import SCORED, Outcome
from asyncrl.errors import RewardError
from asyncrl.waits import doubling, pause, timed

MAX_BYTES = 1 << 20  # of a reply; a score takes a few dozen
RETRIED = (408, 425, 429, 500, 502, 503, 504, 529)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0  # before a request is sent again
LONGEST_RETRY_AFTER_S = 60.0  # a server may ask for more; then the attempt is made, and refused, earlier
ROOM = "episode waits for room at a reward server"
RETRY = "episode waits before it asks a reward server again"


class _Again(Exception):
    """The request may succeed when it is sent again, after so many seconds if the server said so."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass(frozen=True)
class Scored:
    """What a reply says: the reward, and the tokens that it took if it says them."""

    reward: Reward
    tokens: int | None = None


@dataclass(frozen=True)
class EndpointSettings:
    """Attributes:
    url: where requests are posted to.
    timeout_s: seconds of one request.
    max_attempts: times a request is sent.
    in_flight: requests at once.
    limits: per minute, of this worker.
    headers: of every request; they may hold a key, and are never shown.
    asks_again: whether a reply without a usable score is worth another attempt.
    """

    url: str
    timeout_s: float
    max_attempts: int
    in_flight: int
    limits: MinuteLimits
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    asks_again: bool = False


class Endpoint:
    """One URL. Bound to the event loop that it is used in."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self.shown = str(httpx.URL(settings.url).copy_with(userinfo=b""))
        """Its address for messages: without a login that may be in it."""
        limits = httpx.Limits(max_connections=settings.in_flight, max_keepalive_connections=settings.in_flight)
        # No proxies of the environment: rewards go where the configuration says.
        self._http = httpx.AsyncClient(
            timeout=settings.timeout_s, limits=limits, trust_env=False, headers=dict(settings.headers)
        )
        self._room = asyncio.Semaphore(settings.in_flight)

    async def ask(self, body: Mapping[str, object], read: Callable[[object], Scored], *, tokens: int = 0) -> Outcome:
        """Post `body` until a reply can be read, at most `max_attempts` times.

        Args:
            body: JSON.
            read: what the JSON of a reply means. Raises RewardError: it has no score.
            tokens: that the request will take, about, for the limits.
        Returns:
            scored, or queue_full, timeout, unreachable, refused or bad_reply.
        """
        queue_s = QUEUE_CALLS * self._settings.timeout_s
        try:
            with timed(ROOM, lambda: f"{self.shown} has {self._settings.in_flight} requests of this worker"):
                async with asyncio.timeout(queue_s):
                    await self._room.acquire()
        except TimeoutError:
            return Outcome.failed("queue_full", f"no room at {self.shown} for {queue_s:g} s")
        try:
            return await self._ask(body, read, tokens, queue_s)
        finally:
            self._room.release()

    async def close(self) -> None:
        """Close connections; requests in flight fail."""
        await self._http.aclose()

    async def _ask(
        self, body: Mapping[str, object], read: Callable[[object], Scored], tokens: int, queue_s: float
    ) -> Outcome:
        own, kind, error = self._settings, "unreachable", ""
        pauses_s, after_s = doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0
        for attempt in range(own.max_attempts):
            if attempt:
                await pause(RETRY, max(next(pauses_s), after_s))
            after_s = 0.0
            try:
                async with asyncio.timeout(queue_s):
                    admitted = await own.limits.admit(tokens)
            except TimeoutError:
                return Outcome.failed(
                    "queue_full", f"the limits per minute of {self.shown} left no room for {queue_s:g} s"
                )
            try:
                scored = read(await self._reply(body))
                admitted.took(scored.tokens)
                return Outcome(SCORED, scored.reward)
            except RewardError as found:
                kind, error = "bad_reply", str(found)
                if not own.asks_again:
                    return Outcome.failed(kind, error)
            except httpx.HTTPStatusError as found:
                return Outcome.failed("refused", str(found))
            except TimeoutError:
                kind, error = "timeout", f"no reply of {self.shown} in {own.timeout_s:g} s"
            except (_Again, httpx.HTTPError) as found:
                kind, error = "unreachable", f"{self.shown}: {type(found).__name__.lstrip('_')}: {found}"
                after_s = found.after_s if isinstance(found, _Again) else 0.0
        return Outcome.failed(kind, f"{own.max_attempts} attempts; the last: {error}")

    async def _reply(self, body: Mapping[str, object]) -> object:
        url, shown = self._settings.url, self.shown
        async with (
            asyncio.timeout(self._settings.timeout_s),
            self._http.stream("POST", url, json=dict(body)) as reply,
        ):
            raw = await _limited(reply, shown)
        if reply.status_code in RETRIED:
            raise _Again(f"status {reply.status_code}: {self._excerpt(raw)}", _retry_after_s(reply))
        if reply.status_code != 200:
            text = f"{shown}: status {reply.status_code}: {self._excerpt(raw)}"
            raise httpx.HTTPStatusError(text, request=reply.request, response=reply)
        try:
            found: object = json.loads(raw)
        except (ValueError, RecursionError):
            raise RewardError(f"{shown} answered {self._excerpt(raw)}, which is no JSON") from None
        return found

    def _excerpt(self, raw: bytes) -> str:
        """The beginning of a reply, for messages; a server that refuses a key may say it back."""
        text = raw.decode("utf-8", "replace")
        for header in self._settings.headers.values():
            text = text.replace(header.split(" ")[-1], "**********")
        return excerpt(text)


def _retry_after_s(reply: httpx.Response) -> float:
    """Seconds of the header; a date, or nonsense, counts as none."""
    text = reply.headers.get("retry-after", "")
    return min(float(text), LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdecimal() else 0.0


async def _limited(reply: httpx.Response, url: str) -> bytes:
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise RewardError(f"{url} answered more than {MAX_BYTES} bytes, expected a score")
    return bytes(body)
