"""Ask servers of a run to leave, to be replaced, to come back, to join; and wait until they have.

consumes  an operator's command       waits for     the server's host to obey
produces  orders in the version log   unblocked by  inference.host
"""

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from asyncrl import waits
from asyncrl.config import Config
from asyncrl.errors import ConfigError, PreflightError
from asyncrl.inference.adoption import START
from asyncrl.run.adoptions import NAME
from asyncrl.run.connections import weights_url
from asyncrl.run.existing import open_existing
from asyncrl.run.roster import AWAITED, LOST, Row, rows
from buffer.versions import label
from weightsync import VersionLog, open_log
from weightsync.orders import Adoption, Order, OrderKind

T = TypeVar("T")

OBEYED = "operator waits for a server to obey"
SLACK_S = 60.0
"""Seconds that a server may take beyond the time of its requests: an update that is under way ends first."""


@contextmanager
def open_fleet(config: Config) -> Iterator[VersionLog]:
    """The version log of a run that exists. Raises what open_existing raises."""
    with open_existing(config) as (_, url):
        log = open_log(weights_url(config, url), config.run.name)
        try:
            yield log
        finally:
            log.close()


def ask(log: VersionLog, name: str, kind: OrderKind, *, within_s: float, force: bool) -> Row:
    """Ask a server to leave or to be replaced; how it was then.

    Raises:
        PreflightError: there is no such server, it is lost, or no other one serves and `force` is false.
    """
    known = {row.name: row for row in rows(log)}
    found = require_known(name, known)
    if found.state == LOST:
        raise PreflightError(
            f"{name} is lost: {found.reason}. Nobody would obey. `asyncrl fleet remove` takes it off the list; "
            "serve-rollout starts a host that died again by itself."
        )
    others = [row.name for row in known.values() if row.state == "serving" and row.name != name]
    if found.state == "serving" and not others and not force:
        raise PreflightError(
            f"{name} is the only server that serves: without it every episode waits. Add a server first, or say "
            "--force."
        )
    log.put_order(name, Order(kind, within_s, secrets.token_hex(8)))
    return found


async def left(log: VersionLog, name: str, *, within_s: float) -> None:
    """Return when a server that was asked to leave has left. Raises WaitTimeout."""

    def attempt() -> bool | None:
        server = log.roster().get(name)
        return server is None or server.state == "drained" or None

    await _obeyed(log, name, attempt, within_s + SLACK_S)


async def replace(
    log: VersionLog, name: str, *, within_s: float, start_s: float, force: bool, wait: bool
) -> str | None:
    """Ask a server to be replaced; the version that it serves in its next life, None if that is not waited for.

    Args:
        start_s: seconds that it may take to start.
    Raises:
        PreflightError: see `ask`. WaitTimeout.
    """
    before = log.roster().get(name)
    ask(log, name, "replace", within_s=within_s, force=force)
    if not wait or before is None:
        return None

    def attempt() -> str | None:
        server, ack = log.servers().get(name), log.acks().get(name)
        if server is None or server.incarnation == before.incarnation or ack is None or ack.state != "serving":
            return None
        return label(ack.version)

    return await _obeyed(log, name, attempt, within_s + start_s + SLACK_S)


async def remove(log: VersionLog, name: str, *, force: bool) -> str:
    """Have a server leave at once, or forget one that is lost; what became of it, for people.

    Raises:
        PreflightError: see `ask`. WaitTimeout.
    """
    found, was_added = require_known(name, {row.name: row for row in rows(log)}), name in log.adoptions()
    if found.state in (LOST, AWAITED):
        _forget(log, name)
        return f"{name} was {found.state} and is off the list"
    ask(log, name, "leave", within_s=0.0, force=force)
    await left(log, name, within_s=0.0)
    if not was_added:
        return f"{name} left; `asyncrl fleet restore` has it back"
    log.put_adoption(name, None)
    log.put_order(name, None)
    return f"{name} left; the server itself runs on, with the weights that it has"


def restore(log: VersionLog, name: str) -> None:
    """Take back what was asked of a server. Raises PreflightError: nothing was."""
    if name not in log.orders():
        asked = ", ".join(sorted(log.orders())) or "none"
        raise PreflightError(f"nothing is asked of {name!r}; servers that were drained, removed or replaced: {asked}")
    log.put_order(name, None)


def add(log: VersionLog, config: Config, url: str, *, name: str, machine: str) -> tuple[str, str]:
    """Have a server adopted; its name, and how it must have been started.

    Raises:
        ConfigError: the address is none, or the configuration does not allow for it.
        PreflightError: the name is taken by a server with another address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise ConfigError(f"{url!r} is not the address of a server: expected http://host:port.")
    if config.weightsync.stage_dir is None:
        raise ConfigError(
            "weightsync.stage_dir is not set: a server that asyncrl does not start must know where its weights will "
            "lie. Set it, for serve-rollout too, to a folder on the server's machine."
        )
    if config.cluster.backend != "local":
        raise ConfigError(
            f"cluster.backend = {config.cluster.backend}: the host of an added server has to run on its machine. Run "
            "`asyncrl serve-rollout` with cluster.backend=local there."
        )
    machine = machine or socket.gethostname()
    name = name or f"{machine}-added-{parts.port or 80}"
    if NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} is no name for a server: expected letters, digits, '.', '_' and '-'. Set --name.")
    taken = next((row for row in rows(log) if row.name == name and row.url not in ("", url)), None)
    if taken is not None and taken.state != LOST:
        raise PreflightError(f"{name} is a server at {taken.url}. Choose another --name, or remove that one first.")
    log.put_order(name, None)
    log.put_adoption(name, Adoption(url.rstrip("/"), machine))
    return name, f"{START}={config.weightsync.stage_dir}/{name}"


def require_known(name: str, known: dict[str, Row]) -> Row:
    """The row of a server. Raises PreflightError: there is none; the message names those that there are."""
    if name not in known:
        names = ", ".join(known) or "none; is serve-rollout running?"
        raise PreflightError(f"the run has no server {name!r}. Its servers: {names}")
    return known[name]


def _forget(log: VersionLog, name: str) -> None:
    """Drop what is known of a server that is lost, and what was asked of it."""
    log.put_adoption(name, None)
    log.put_order(name, None)
    log.forget(name)


async def _obeyed(log: VersionLog, name: str, attempt: Callable[[], T | None], deadline_s: float) -> T:
    def why() -> str:
        server = log.roster().get(name)
        return f"{name} is {'gone' if server is None else f'{server.state}: {server.reason}'}"

    return await waits.until(OBEYED, attempt, why=why, wake=log.watch(("server",)).wait, deadline_s=deadline_s)
