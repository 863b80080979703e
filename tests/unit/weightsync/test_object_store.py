"""A store that hangs, fails or is missing: calls end at their deadline, errors are ours and say the fix."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faulty_store import PROTOCOL, FaultyStore, Hanging
from weightsync.config import WeightsyncConfig
from weightsync.errors import DeadlineExceeded, PartMissing, TransportError, TransportFull, TransportLost
from weightsync.log.records import Upload
from weightsync.transport import open_transport
from weightsync.transport.base import part_key, run_prefix, upload_prefix
from weightsync.transport.directory import DirectoryTransport
from weightsync.transport.object_store import _MOST_CALLS, ObjectStoreTransport

UPLOAD = upload_prefix("run", Upload(5, 4, "n1", "plan", ()))
KEY = part_key(UPLOAD, 0, 0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStoreTransport]:
    monkeypatch.setattr(FaultyStore, "before", None)
    transport = open_transport(WeightsyncConfig(directory=f"{PROTOCOL}://{tmp_path}"), "unused", "run")
    assert isinstance(transport, ObjectStoreTransport)
    yield transport
    monkeypatch.setattr(FaultyStore, "before", None)
    transport.delete(run_prefix("run"))


def put(store: ObjectStoreTransport, blob: bytes = b"words", key: str = KEY, deadline_s: float = 10.0) -> None:
    store.put_part(key, [memoryview(blob)], deadline_s=deadline_s)


def get(store: ObjectStoreTransport, size: int = 5, deadline_s: float = 10.0) -> bytes:
    target = bytearray(size)
    store.get_part_into(KEY, memoryview(target), deadline_s=deadline_s)
    return bytes(target)


def test_a_read_that_hangs_ends_at_its_deadline_and_never_writes_to_the_callers_memory_later(
    store: ObjectStoreTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    hanging = Hanging("read")
    monkeypatch.setattr(FaultyStore, "before", hanging)
    target = bytearray(5)
    with pytest.raises(DeadlineExceeded, match=r"get of part .* not done in 0\.1 s\. The store has not answered"):
        store.get_part_into(KEY, memoryview(target), deadline_s=0.1)
    hanging.release.set()
    monkeypatch.setattr(FaultyStore, "before", None)
    assert get(store) == b"words"  # the store is well again, and so is the transport
    assert target == bytes(5)


def test_calls_left_behind_are_bounded_and_who_finds_no_place_is_told_why(
    store: ObjectStoreTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging("write")
    monkeypatch.setattr(FaultyStore, "before", hanging)
    for i in range(_MOST_CALLS):
        with pytest.raises(DeadlineExceeded, match="not answered"):
            put(store, key=part_key(UPLOAD, 0, i), deadline_s=0.02)
    before = threading.active_count()
    with pytest.raises(DeadlineExceeded, match="All 16 calls that may run at once"):
        put(store, key=part_key(UPLOAD, 0, 99), deadline_s=0.02)
    assert threading.active_count() == before
    hanging.release.set()
    put(store, key=part_key(UPLOAD, 0, 99))  # a place is free again


@pytest.mark.parametrize("where", ["write", "move"])
def test_a_part_that_was_written_halfway_is_not_there(
    store: ObjectStoreTransport, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def dies(operation: str, path: str) -> None:
        if operation == where:
            raise ConnectionResetError("the machine is gone")

    monkeypatch.setattr(FaultyStore, "before", dies)
    with pytest.raises(TransportLost, match="could not be written: ConnectionResetError: the machine is gone"):
        put(store)
    monkeypatch.setattr(FaultyStore, "before", None)
    with pytest.raises(PartMissing):
        get(store)
    put(store)
    assert get(store) == b"words"
    # What the first left behind goes with its upload, and does not count as a part.
    assert store.delete(UPLOAD) == 1
    assert [path for path in FaultyStore.store if path.startswith(store._root)] == []


@pytest.mark.parametrize(
    ("error", "kind", "fix"),
    [
        (OSError(errno.ENOSPC, "no space"), TransportFull, "Make room"),
        (OSError(errno.EDQUOT, "quota"), TransportFull, "Make room"),
        (PermissionError(errno.EACCES, "denied"), TransportError, "may read and write in it"),
        (TimeoutError("slow"), TransportLost, "can be reached"),
        (ValueError("a library's own error"), TransportError, "may read and write in it"),
    ],
)
@pytest.mark.parametrize("operation", ["write", "read", "list"])
def test_every_error_of_the_stores_library_becomes_one_of_ours(
    store: ObjectStoreTransport,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    error: Exception,
    kind: type[TransportError],
    fix: str,
) -> None:
    put(store)

    def fails(found: str, path: str) -> None:
        if found == operation:
            raise error

    monkeypatch.setattr(FaultyStore, "before", fails)
    with pytest.raises(TransportError, match=fix) as caught:
        {"write": lambda: put(store), "read": lambda: get(store), "list": lambda: store.uploads("w:")}[operation]()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


def test_a_bucket_that_is_not_there_is_no_missing_part(
    store: ObjectStoreTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(operation: str, path: str) -> None:
        if operation == "write":
            raise FileNotFoundError("no such bucket")

    monkeypatch.setattr(FaultyStore, "before", missing)
    with pytest.raises(TransportError, match=r"no such bucket\. Check that the bucket or folder") as caught:
        put(store)
    assert type(caught.value) is TransportError


def test_what_others_left_in_the_folder_is_no_upload(store: ObjectStoreTransport) -> None:
    put(store)
    left = f"{store._root}/notes.txt"
    FaultyStore().pipe_file(left, b"not ours")
    assert store.uploads(run_prefix("run")) == [UPLOAD]
    FaultyStore().rm_file(left)


def test_another_runs_key_is_refused(store: ObjectStoreTransport) -> None:
    with pytest.raises(ValueError, match="another run's"):
        put(store, key=part_key(upload_prefix("other", Upload(5, 4, "n1", "plan", ())), 0, 0))


def test_a_missing_package_is_named_and_a_password_in_the_url_is_not_shown() -> None:
    # No environment of ours has a client of this store.
    with pytest.raises(TransportError, match=r"pip install lakefs_spec") as caught:
        open_transport(WeightsyncConfig(directory="lakefs://me:secret@bucket/run"), "unused", "run")
    assert "secret" not in str(caught.value)
    with pytest.raises(TransportError, match=r"Protocol not known: nothere\. Give a folder"):
        open_transport(WeightsyncConfig(directory="nothere://bucket"), "unused", "run")


def test_a_file_url_is_the_folder_itself(tmp_path: Path) -> None:
    transport = open_transport(WeightsyncConfig(directory=f"file://{tmp_path}/parts"), "unused", "run")
    assert isinstance(transport, DirectoryTransport)
    assert (tmp_path / "parts").is_dir()
