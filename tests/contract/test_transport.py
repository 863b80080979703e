"""Every transport: what was put is got, nothing torn is read, deadlines hold, deletion is by prefix and complete."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.faulty_store import PROTOCOL
from tests.support.redis_server import RedisServer, running_redis
from tests.support.tcp_parts import RankAndReader
from weightsync.config import WeightsyncConfig
from weightsync.errors import CorruptDelta, DeadlineExceeded, PartMissing, TransportFull
from weightsync.log.records import Upload
from weightsync.transport import Transport, open_transport
from weightsync.transport.base import chunks, part_key, run_prefix, upload_prefix, upload_version
from weightsync.transport.redis import CHUNK_BYTES


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as started:
        yield started


@pytest.fixture(params=["directory", "file", "memory", "drafts", "redis", "tcp"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    server: RedisServer = request.getfixturevalue("server")
    # drafts: a store without atomic writes, where a part is moved into its place.
    protocol = {"file": "file://", "memory": "memory://", "drafts": f"{PROTOCOL}://"}.get(request.param, "")
    directory = None if request.param == "redis" else f"{protocol}{tmp_path}"
    opened: Transport
    if request.param == "tcp":
        opened = RankAndReader(tmp_path)
    else:
        opened = open_transport(WeightsyncConfig(directory=directory), server.url, "run")
    yield opened
    opened.delete(run_prefix("run"))
    opened.close()


def prefix_of(version: int = 5, base: int = 4, nonce: str = "n1", run: str = "run") -> str:
    return upload_prefix(run, Upload(version, base, nonce, "plan", ()))


def put(transport: Transport, key: str, blob: bytes) -> None:
    transport.put_part(key, [memoryview(blob)], deadline_s=10.0)


def get(transport: Transport, key: str, size: int) -> bytes:
    target = bytearray(size)
    assert transport.get_part_into(key, memoryview(target), deadline_s=10.0) == size
    return bytes(target)


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 20 * CHUNK_BYTES + 17])
def test_a_part_of_any_size_comes_back_bit_for_bit(transport: Transport, size: int) -> None:
    blob = np.random.default_rng(size).bytes(size)
    put(transport, part_key(prefix_of(), 0, size), blob)
    assert get(transport, part_key(prefix_of(), 0, size), size) == blob


def test_pieces_are_stored_end_to_end(transport: Transport) -> None:
    pieces = [b"head", b"", bytes(CHUNK_BYTES), b"tail"]
    key = part_key(prefix_of(), 0, 0)
    transport.put_part(key, [memoryview(piece) for piece in pieces], deadline_s=10.0)
    whole = b"".join(pieces)
    assert get(transport, key, len(whole)) == whole


def test_a_repeated_put_changes_nothing(transport: Transport) -> None:
    key = part_key(prefix_of(), 0, 0)
    put(transport, key, b"words")
    put(transport, key, b"words")
    assert get(transport, key, 5) == b"words"
    assert transport.delete(prefix_of()) == 1


def test_a_part_that_is_not_there_and_one_of_another_size_are_told_apart(transport: Transport) -> None:
    key = part_key(prefix_of(), 0, 0)
    with pytest.raises(PartMissing, match="not "):
        get(transport, key, 5)
    put(transport, key, b"words")
    for size in (4, 6):
        with pytest.raises((CorruptDelta, PartMissing)):
            get(transport, key, size)


def test_a_deadline_that_has_passed_is_kept_and_named(transport: Transport) -> None:
    key = part_key(prefix_of(), 0, 0)
    with pytest.raises(DeadlineExceeded, match="put of part"):
        transport.put_part(key, [memoryview(b"words")], deadline_s=0.0)
    put(transport, key, b"words")
    with pytest.raises(DeadlineExceeded, match="get of part"):
        transport.get_part_into(key, memoryview(bytearray(5)), deadline_s=0.0)


def test_deletion_takes_what_starts_with_the_prefix_and_nothing_else(transport: Transport) -> None:
    one, two, other = prefix_of(5), prefix_of(5, nonce="n2"), prefix_of(50)
    for prefix in (one, two, other):
        for bucket in range(3):
            put(transport, part_key(prefix, 0, bucket), b"words")
    assert transport.uploads(run_prefix("run")) == sorted([one, two, other])
    assert transport.uploads(one) == [one]
    assert transport.delete(part_key(one, 0, 1)) == 1
    assert get(transport, part_key(one, 0, 2), 5) == b"words"
    assert transport.delete(one) == 2
    assert transport.delete(one) == 0
    assert get(transport, part_key(two, 0, 0), 5) == b"words"
    assert transport.delete(run_prefix("run")) == 6
    assert transport.uploads(run_prefix("run")) == []
    with pytest.raises(PartMissing):
        get(transport, part_key(two, 0, 0), 5)


def test_many_threads_put_and_get_at_once(transport: Transport) -> None:
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            for bucket in range(5):
                blob = np.random.default_rng(rank * 10 + bucket).bytes(70_000)
                put(transport, part_key(prefix_of(), rank, bucket), blob)
                assert get(transport, part_key(prefix_of(), rank, bucket), 70_000) == blob
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert transport.delete(run_prefix("run")) == 20


def test_a_full_redis_refuses_a_part_with_the_way_out() -> None:
    with running_redis(maxmemory="3mb") as server:
        transport = open_transport(WeightsyncConfig(), server.url, "run")
        blob = bytes(8 << 20)
        with pytest.raises(TransportFull, match="maxmemory"):
            put(transport, part_key(prefix_of(), 0, 0), blob)
        assert transport.delete(run_prefix("run")) == 1
        transport.close()


def test_names_of_runs_cannot_reach_outside_or_into_another_run(tmp_path: Path) -> None:
    config = WeightsyncConfig(directory=str(tmp_path / "parts"))
    for run in ("../../outside", "a:b", ".", "w/x"):
        transport = open_transport(config, "unused", run)
        put(transport, part_key(prefix_of(run=run), 0, 0), b"words")
        assert get(transport, part_key(prefix_of(run=run), 0, 0), 5) == b"words"
        assert run_prefix(run).count(":") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts"]
    assert len(list((tmp_path / "parts").iterdir())) == 4


def test_keys_name_run_version_base_nonce_rank_and_bucket() -> None:
    assert part_key(prefix_of(7, 3, "abc"), 2, 9) == "w:run:7:3:abc:2:9"
    assert upload_version(prefix_of(7, 3)) == 7


def test_chunks_copy_only_across_seams_and_lose_nothing() -> None:
    parts = [memoryview(bytes([i]) * size) for i, size in enumerate((3, 0, 10, 1, 6))]
    whole = b"".join(parts)
    for size in range(1, 25):
        cut = list(chunks(parts, size))
        assert b"".join(cut) == whole
        assert all(len(chunk) == size for chunk in cut[:-1])
        assert len(cut) == max(1, -(-len(whole) // size))
    assert list(chunks([], 4)) == [b""]
