"""Open the buffer of a run that exists: commands that operate a run must not start one by a typing error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.config import Config
from asyncrl.errors import PreflightError
from asyncrl.run.connections import URL, open_buffer, redis_url
from buffer import ReplayBuffer

RETRY_S = 5.0  # a person waits for the answer; the clusters retry for buffer.retry_s


@contextmanager
def open_existing(config: Config) -> Iterator[tuple[ReplayBuffer, str]]:
    """The buffer of a run, and the address of its Redis.

    Raises:
        PreflightError: the run is not known: no server of its own in its directory, or no record of it on the server.
        buffer.errors.ServerLost: the server does not answer for a few seconds.
        buffer.errors.ServerRefused: see `open_buffer`.
    """
    _check_directory(config)
    settings = config.buffer.model_copy(update={"retry_s": min(RETRY_S, config.buffer.retry_s)})
    patient = config.model_copy(update={"buffer": settings})
    with redis_url(patient) as url, open_buffer(patient, url) as buffer:
        if buffer.record() is None and not any(buffer.counts().values()) and buffer.status().version == "0.0":
            raise PreflightError(
                f"run {config.run.name!r} is not known on the Redis that was asked: nothing was ever registered or "
                "reserved under that name. Check run.name and buffer.url; `asyncrl train` or `asyncrl serve-rollout` "
                "starts a run."
            )
        yield buffer, url


def _check_directory(config: Config) -> None:
    """Without an address the run's own server is meant; looking must not start one for a run that never was."""
    if config.buffer.url is not None or URL in os.environ:
        return
    directory = config.run.directory / "redis"
    if not (directory / "password").exists():  # it stays when the server is stopped
        raise PreflightError(
            f"run {config.run.name!r} has no buffer here: {directory} holds no server of its own, and neither "
            f"buffer.url nor {URL} names another. Check run.name, run.dir and the directory you are in; `asyncrl "
            "train` or `asyncrl serve-rollout` starts a run."
        )
