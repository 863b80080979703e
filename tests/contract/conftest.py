"""Runs of the buffer on both stores, for tests that are held to each of them."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.buffer_run import BufferRun
from tests.support.redis_server import RedisServer, running_redis

NewRun = Callable[..., BufferRun]


@pytest.fixture(scope="package")
def ledger_server() -> Iterator[RedisServer]:
    """One private server for all of them; every run has a name of its own."""
    with running_redis() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def new_run(request: pytest.FixtureRequest) -> Iterator[NewRun]:
    """Makes runs on one of the stores; afterwards the books of each must be in order."""
    server = None if request.param == "memory" else request.getfixturevalue("ledger_server")
    runs: list[BufferRun] = []

    def one(**staleness: object) -> BufferRun:
        runs.append(BufferRun(server, **staleness))
        return runs[-1]

    yield one
    for run in runs:
        run.audit()
        run.close()
