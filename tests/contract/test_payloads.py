"""One body of tests for every home of payloads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from buffer import PayloadConfig
from buffer.keys import payload_key
from buffer.payloads import PayloadHome, Payloads
from buffer.payloads.directory import DirectoryPayloads
from buffer.payloads.memory import MemoryPayloads
from buffer.payloads.redis import RedisPayloads
from buffer.redis_store import RedisServer as Connection
from tests.support.redis_server import RedisServer, running_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(params=["memory", "redis", "file", "fsspec"])
def home(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> Iterator[PayloadHome]:
    if request.param == "memory":
        yield MemoryPayloads()
    elif request.param == "redis":
        connection = Connection(server.url, 5)
        yield RedisPayloads(connection)
        connection.close()
    else:
        yield DirectoryPayloads((tmp_path / "groups").as_uri() if request.param == "file" else f"memory://{tmp_path}")


def key(number: int, run: str = "demo", *, spilled: bool = False) -> str:
    return payload_key(run, f"{number}.1", f"{number:032x}", spilled=spilled)


def test_bytes_come_back_as_they_were(home: PayloadHome) -> None:
    blobs = {key(1): b"", key(2): bytes(range(256)) * 10, key(3): b"\x00"}
    for name, blob in blobs.items():
        home.put(name, blob)
    assert {name: home.get(name) for name in blobs} == blobs
    home.delete(blobs)


def test_a_missing_payload_is_none_and_deleting_it_is_done(home: PayloadHome) -> None:
    assert home.get(key(9)) is None
    home.put(key(8), b"x")
    for _ in range(2):
        home.delete([key(8), key(9)])
    assert home.get(key(8)) is None


def test_many_are_deleted_at_once(home: PayloadHome) -> None:
    names = [key(number) for number in range(250)]
    for name in names:
        home.put(name, b"x")
    home.delete(names)
    assert [home.get(name) for name in names] == [None] * 250


def test_a_young_payload_is_no_stray_and_other_runs_are_left_alone(home: PayloadHome) -> None:
    home.put(key(1), b"x")
    home.put(key(2, "demo2"), b"x")
    home.put(key(3, "demo.eval.1.7"), b"x")
    assert [name for _ in range(300) for name in home.strays("demo", 3600)] == []
    found = {name for _ in range(300) for name in home.strays("demo", 0)}
    assert found == {key(1), key(3, "demo.eval.1.7")}
    home.delete([key(1), key(2, "demo2"), key(3, "demo.eval.1.7")])


def test_large_payloads_spill_and_the_key_says_where_they_are(tmp_path: Path) -> None:
    near = MemoryPayloads()
    both = Payloads(near, PayloadConfig(home=tmp_path.as_uri(), spill_bytes=10))
    assert (both.spills(10), both.spills(11)) == (False, True)
    both.put(key(1), b"small")
    both.put(key(2, spilled=True), b"large enough")
    assert near.get(key(1)) == b"small"
    assert near.get(key(2, spilled=True)) is None
    assert both.get(key(2, spilled=True)) == b"large enough"
    assert {name for _ in range(256) for name in both.strays("demo", 0)} == {key(1), key(2, spilled=True)}
    both.delete([key(1), key(2, spilled=True)])
    assert [both.get(key(1)), both.get(key(2, spilled=True))] == [None, None]


def test_without_a_second_home_nothing_spills_and_a_spilled_key_is_a_clear_error() -> None:
    near = Payloads(MemoryPayloads(), PayloadConfig())
    assert not near.spills(1 << 40)
    with pytest.raises(ValueError, match=r"buffer\.payload\.home is 'redis' here"):
        near.get(key(2, spilled=True))
