"""Make a server sample with a version that is staged: pause -> load -> check -> stamp -> continue.

This is the only time that a server stands still for its weights, and it is measured. The server answers success
whatever its loader did, so the loader's own status decides; a version is stamped only after its digest was compared.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import RequestRefused, ServerUnavailable
from asyncrl.inference.launcher import LOADER
from asyncrl.inference.protocol import LoaderStatus, PauseMode
from buffer.versions import label
from weightsync.receiver import UPDATE_BODY

Kv = Literal["keep", "recompute", "abort"]


@dataclass(frozen=True)
class Crossing:
    """How requests in flight get past an update.

    Attributes:
        mode: of the pause.
        flush_cache: the update empties the prefix cache; refused after it wrote while rows hold keys and values.
        aborts: they are answered with what they have, for their episodes to ask again.
    """

    mode: PauseMode
    flush_cache: bool
    aborts: bool = False


# SGLang's own pause with abort looks once a second whether everybody is answered, and for ever where it is paused in
# place already. Aborted while they run, requests end with the step that is under way, which a retraction waits for.
# Aborted after it they would lose what the scheduler has not handed out yet, up to some tens of tokens.
CROSSINGS: Mapping[Kv, Crossing] = MappingProxyType(
    {
        "keep": Crossing("in_place", flush_cache=False),
        "recompute": Crossing("retract", flush_cache=True),
        "abort": Crossing("retract", flush_cache=True, aborts=True),
    }
)
"""What each value of weightsync.kv does."""

PREPARE, GOING_ON = "@weightsync/prepare", 1
"""As weightsync.preparation has them, which needs torch."""

PREPARED_POLL_S, MOST_PREPARED_POLL_S = 0.005, 0.1
"""Between two questions whether the server's loader is ready: at first, and at most."""

DONE = (0, 2)
"""Codes of the loader (weightsync.sglang_loader.CODES, which needs torch) that say the version is held: applied, and
held already, after an answer that was lost."""


class Staged(Protocol):
    """The part of weightsync's Ticket that an activation uses."""

    @property
    def target(self) -> int:
        """Packed version that the server will hold."""

    @property
    def digest(self) -> int:
        """Digest of its weights, from the version's record."""


@dataclass(frozen=True)
class Held:
    """Weights that are known: their version and their digest, which was compared."""

    version: int
    digest: int


@dataclass(frozen=True)
class Pausing:
    """How a server is paused for its weights.

    Attributes:
        kv: what becomes of requests in flight; a row of CROSSINGS.
        num_ranks: tensor-parallel ranks of the server.
        deadline_s: seconds it may be paused.
    """

    kv: Kv
    num_ranks: int
    deadline_s: float


@dataclass(frozen=True)
class Activated:
    """What an activation took: seconds between pause and continue, and words that changed."""

    pause_s: float
    num_changed: int


class ActivationFailed(ServerError):
    """The server did not take the version. `dirty`: nobody knows its weights now, and it is left paused, so that no
    request in flight goes on with them."""

    def __init__(self, message: str, *, dirty: bool) -> None:
        super().__init__(message)
        self.dirty = dirty


class NotMeasured(ActivationFailed):
    """The weight loader ran, and could not tell what the engine holds."""


async def prepare(client: ServerClient, staged: Staged, *, deadline_s: float) -> None:
    """Have the server's loader do beside its steps what an activation of `staged` needs no pause for.

    A shortcut: what is not done by the deadline is done, or waited for, while the server is paused.

    Raises:
        ServerUnavailable: the server died.
    """
    end, pause_s = time.monotonic() + deadline_s, PREPARED_POLL_S
    while not await _is_prepared(client) and time.monotonic() < end:
        await waits.pause("host waits for its server to prepare weights", pause_s, lambda: label(staged.target))
        pause_s = min(2 * pause_s, MOST_PREPARED_POLL_S)


async def _is_prepared(client: ServerClient) -> bool:
    try:
        return await client.ask_loader(PREPARE) != [GOING_ON]
    except RequestRefused:  # no loader has run in the engine yet, or it prepares nothing
        return True


async def activate(client: ServerClient, staged: Staged, *, held: Held | None, pausing: Pausing) -> Activated:
    """Load what lies in the server's stage directory.

    Args:
        client: of the server.
        staged: what lies there.
        held: the weights before; None: unknown.
        pausing: how.
    Raises:
        ActivationFailed: the loader refused, or the digest is not the version's.
        ServerUnavailable: the server died, or the deadline passed.
    """
    start, dirty, crossing = time.monotonic(), False, CROSSINGS[pausing.kv]
    try:
        async with _paused_for(pausing, client, f"version {label(staged.target)}"):
            if crossing.aborts:
                await client.abort_all()
            await client.pause(crossing.mode)
            await client.begin_update()
            dirty = True  # whatever ends the next call, also a cancellation, may have changed weights
            status = await _load(client, pausing.num_ranks, flush_cache=crossing.flush_cache)
            dirty = held is None or (status.version, status.digest) != (held.version, held.digest)
            _check(status, staged, dirty=dirty)
            await client.set_version(label(staged.target))
            dirty = False
    except RequestRefused as error:
        raise ActivationFailed(f"{client.url} refused the update: {error}", dirty=dirty) from error
    finally:
        if not dirty:
            await client.resume()
    return Activated(time.monotonic() - start, status.num_changed)


async def inspect(client: ServerClient, *, pausing: Pausing) -> LoaderStatus:
    """What the engine really holds, measured by the loader when an inspection is staged. Leaves the server paused.

    Raises:
        NotMeasured: the loader could not tell.
        ActivationFailed: the server refused.
        ServerUnavailable: the server died, or the deadline passed.
    """
    async with _paused_for(pausing, client, "an inspection of its weights"):
        try:
            # No weight changes, so requests in flight may keep their cache whatever the setting says.
            await client.pause("in_place")
            await client.begin_update()
            status = await _load(client, pausing.num_ranks, flush_cache=False)
        except RequestRefused as error:
            raise ActivationFailed(f"{client.url} refused an inspection: {error}", dirty=True) from error
        if status.code != 0:
            raise NotMeasured(
                f"{client.url}: the weight loader answered code {status.code} to an inspection", dirty=True
            )
        return status


@asynccontextmanager
async def _paused_for(pausing: Pausing, client: ServerClient, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(pausing.deadline_s):
            yield
    except TimeoutError as error:
        raise ServerUnavailable(
            f"{client.url} was paused for {what} for more than weightsync.activate_deadline_s = "
            f"{pausing.deadline_s:g} s"
        ) from error


async def _load(client: ServerClient, num_ranks: int, *, flush_cache: bool) -> LoaderStatus:
    """Within an update session, which ends here."""
    try:
        await client.load_staged(LOADER, UPDATE_BODY, num_ranks=num_ranks, flush_cache=flush_cache)
    except BaseException:
        await client.end_update()
        raise
    # At once: neither waits for the other, and the server stands still for both.
    ended, status = await asyncio.gather(client.end_update(), client.weight_status(), return_exceptions=True)
    if isinstance(ended, BaseException):
        raise ended
    if isinstance(status, BaseException):
        raise status
    return status


def _check(status: LoaderStatus, staged: Staged, *, dirty: bool) -> None:
    if status.code not in DONE or (status.version, status.digest) != (staged.target, staged.digest):
        raise ActivationFailed(
            f"the weight loader answered code {status.code} and holds version {label(status.version)} with digest "
            f"{status.digest:016x}; version {label(staged.target)} has {staged.digest:016x}. The server leaves "
            "rotation and loads an anchor.",
            dirty=dirty,
        )
