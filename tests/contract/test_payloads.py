"""One body of tests for every home of payloads."""

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buffer import BufferConfig, Claim, CorruptPayload, Leased, PayloadConfig, ReplayBuffer, ServerLost, pack
from buffer.keys import payload_key
from buffer.payloads import PayloadHome, Payloads
from buffer.payloads.directory import DirectoryPayloads
from buffer.payloads.memory import MemoryPayloads
from buffer.payloads.redis import RedisPayloads
from buffer.redis_store import RedisServer as Connection
from tests.support.groups import group_for
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


@pytest.mark.parametrize("num_bytes", [(4 << 20) - 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 77])
def test_a_large_payload_comes_back_as_it_was(home: PayloadHome, num_bytes: int) -> None:
    blob = b"".join(number.to_bytes(8, "little") for number in range(num_bytes // 8 + 1))[:num_bytes]
    home.put(key(1), blob)
    home.put(key(2), b"small")
    sizes = {key(1): num_bytes, key(2): 5, key(3): num_bytes}
    assert home.get(key(1)) == home.get(key(1), num_bytes) == blob
    assert home.get_each(sizes) == {key(1): blob, key(2): b"small", key(3): None}
    home.delete([key(1), key(2)])


@pytest.mark.parametrize("said", [8 << 20, (5 << 20) + 1, (5 << 20) - 1, 4 << 20, 100])
def test_a_large_payload_of_another_size_than_its_index_says_is_told_apart(home: PayloadHome, said: int) -> None:
    home.put(key(1), bytes(5 << 20))
    found = home.get(key(1), said)
    assert found is not None
    assert len(found) == 5 << 20 if said > 5 << 20 else len(found) > said
    home.delete([key(1)])


def test_a_repeat_of_a_put_changes_nothing(home: PayloadHome) -> None:
    for _ in range(2):
        home.put(key(1), b"x" * 1000)
        assert home.get(key(1)) == b"x" * 1000
    home.delete([key(1)])
    assert home.get(key(1)) is None


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


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Any longer write of this process fails after so many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_half_written_file_is_never_served_and_is_swept(tmp_path: Path) -> None:
    home = DirectoryPayloads(tmp_path.as_uri())
    with files_of_at_most(1 << 16), pytest.raises(ServerLost, match=r"did not take the 131072 bytes.*File too large"):
        home.put(key(5), bytes(1 << 17))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in written] == [1 << 16], "half of it is there"
    assert home.get(key(5)) is None
    strays = [name for _ in range(256) for name in home.strays("demo", 0)]
    home.delete(strays)
    assert len(strays) == 1
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_who_reads_a_file_while_its_put_is_repeated_reads_all_of_it(tmp_path: Path) -> None:
    home = DirectoryPayloads(tmp_path.as_uri())
    home.put(key(5), b"x" * 1000)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    with path.open("rb", buffering=0) as reader:
        assert reader.read(10) == b"x" * 10
        home.put(key(5), b"x" * 1000)
        assert reader.read() == b"x" * 990


def test_a_home_that_cannot_be_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, no directory")
    home = DirectoryPayloads((tmp_path / "taken").as_uri())
    for call in (lambda: home.put(key(1), b"x"), lambda: home.get(key(1)), lambda: home.delete([key(1)])):
        with pytest.raises(ServerLost, match=r"buffer\.payload\.home, .*taken, did not .*NotADirectoryError"):
            call()


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_is_no_group(tmp_path: Path, damage: str) -> None:
    config = BufferConfig(payload=PayloadConfig(home=tmp_path.as_uri(), spill_bytes=1))
    buffer = ReplayBuffer.in_memory("demo", config)
    branch = buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
    claim = buffer.reserve("w")
    assert isinstance(claim, Claim)
    buffer.put(claim, group_for(claim, pack(branch, 0)))
    batch = buffer.lease(branch, 0, 1, 1)
    assert isinstance(batch, Leased)
    assert buffer.fetch(batch.entries[0]).gid == claim.gid
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    blob = path.read_bytes()
    path.write_bytes(blob[:-8] if damage == "cut" else blob[:-8] + bytes(byte ^ 1 for byte in blob[-8:]))
    with pytest.raises(CorruptPayload, match="its index says"):
        buffer.fetch(batch.entries[0])


def test_of_a_file_longer_than_its_index_says_no_more_is_read_than_shows_it(tmp_path: Path) -> None:
    payloads = Payloads(MemoryPayloads(), PayloadConfig(home=f"file://{tmp_path}", spill_bytes=0))
    long = key(1, spilled=True)
    payloads.put(long, b"x" * 1000)
    assert payloads.get(long, 10) == b"x" * 11
    assert payloads.get_each({long: 10}) == {long: b"x" * 11}
    assert payloads.get(long, 1000) == payloads.get(long) == b"x" * 1000


def test_a_large_payload_from_redis_lies_in_memory_once(server: RedisServer) -> None:
    connection = Connection(server.url, 5)
    home, num_bytes = RedisPayloads(connection), 64 << 20
    home.put(key(1), bytes(num_bytes))
    home.get(key(1), num_bytes)  # connections and buffers are there
    tracemalloc.start()
    try:
        found = home.get(key(1), num_bytes)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert len(found) == num_bytes
    assert most < 1.2 * num_bytes, "hiredis holds what it received beside this, at most a window"
    home.delete([key(1)])
    connection.close()
