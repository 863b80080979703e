"""The doctor asks a real Redis what a run would ask it, and leaves nothing behind."""

from collections.abc import Iterator

import pytest

from asyncrl.doctor.finding import Finding
from asyncrl.doctor.ledger import check_redis
from asyncrl.load_config import load
from tests.support.redis_server import RedisServer, running_redis

PASSWORD = "hunter@2"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(password=PASSWORD) as server:
        yield server


def finding(url: str | None) -> Finding:
    (found,) = check_redis(load(None, [f"buffer.url='{url}'"] if url else []).config)
    return found


def test_a_redis_that_will_do_is_ok_and_left_as_it_was(server: RedisServer) -> None:
    found = finding(server.url)
    assert found.ok, found
    assert "hunter" not in found.detail
    assert server.client().dbsize() == 0


def test_a_wrong_password_is_found_and_not_shown(server: RedisServer) -> None:
    found = finding(server.url.replace("hunter", "hunted"))
    assert not found.ok
    assert "hunted" not in found.detail
    assert "password" in found.detail.lower()


def test_a_redis_that_evicts_is_found() -> None:
    with running_redis(maxmemory="64mb", maxmemory_policy="allkeys-lru") as evicting:
        found = finding(evicting.url)
    assert not found.ok
    assert "noeviction" in found.detail


def test_a_redis_that_is_not_there_is_found_in_seconds() -> None:
    found = finding("redis://:hunter2@127.0.0.1:1/0")
    assert not found.ok
    assert "hunter2" not in found.detail


def test_the_embedded_redis_is_tried_where_nothing_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCRL_REDIS_URL", raising=False)
    found = finding(None)
    assert found.ok, found
    assert found.name == "embedded Redis"
