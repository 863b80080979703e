"""Reach the run's Redis, the user's or the embedded one, and open the two bridges over it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.config import Config
from asyncrl.errors import PreflightError
from asyncrl.load_config import REDIS_URL_VARIABLE
from asyncrl.run.signals import deaf
from buffer import Embedded, ReplayBuffer
from buffer.redis_store import RedisServer
from weightsync import Transport, VersionLog, open_log, open_transport

URL = REDIS_URL_VARIABLE
"""How a parent tells its children where Redis is."""

_held: list[Embedded] = []
"""Embedded servers that this process uses."""


@contextmanager
def redis_url(config: Config) -> Iterator[str]:
    """The address of the run's Redis; the embedded one is found or started, and stopped by its last user."""
    if config.buffer.url is not None:
        yield config.buffer.url.get_secret_value()
        return
    if URL in os.environ:
        yield os.environ[URL]
        return
    from buffer import embedded

    server = embedded.ensure(config.run.directory / "redis")
    _held.append(server)
    try:
        yield server.url
    finally:
        with deaf():
            let_go()


def let_go() -> None:
    """Let go of the embedded Redis, and stop it if nobody else uses it: for a command that is about to leave without
    unwinding, and then repeating is harmless."""
    while _held:
        _held.pop().close()


@contextmanager
def open_buffer(config: Config, url: str | None = None) -> Iterator[ReplayBuffer]:
    """The run's replay buffer, closed at the end.

    Raises:
        buffer.errors.ServerRefused: the server is missing, too old, evicts, or refuses the password; says the fix.
    """
    if url is None:
        with redis_url(config) as found, open_buffer(config, found) as buffer:
            yield buffer
        return
    buffer = ReplayBuffer.connect(url, config.run.name, config.buffer, config.staleness)
    try:
        yield buffer
    finally:
        buffer.close()


def weights_url(config: Config, url: str) -> str:
    """The address of the weights' Redis: its own, or the buffer's `url`.

    Raises:
        PreflightError: it is a Redis Cluster.
    """
    if config.weightsync.url is not None:
        url = config.weightsync.url.get_secret_value()
    server = RedisServer(url, config.buffer.retry_s)
    try:
        is_cluster = server.is_cluster()
    finally:
        server.close()
    if is_cluster:
        raise PreflightError(
            f"{server.address} is a Redis Cluster. The buffer may use it, the log of weight versions may not: set "
            "weightsync.url to a single server or to Sentinels, for both commands."
        )
    return url


def open_weights(config: Config, url: str) -> tuple[VersionLog, Transport]:
    """The log of weight versions and what moves their parts."""
    url = weights_url(config, url)
    return open_log(url, config.run.name), open_transport(config.weightsync, url, config.run.name)
