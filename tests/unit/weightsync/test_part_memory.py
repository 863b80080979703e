"""Parts in memory: limited in bytes, the oldest that nobody needs leave first, nothing is copied without reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import CorruptDelta, TransportFull
from weightsync.transport.base import part_key
from weightsync.transport.tcp.memory import PartMemory

KEEP = 100


def memory(needed: tuple[int, ...] = ()) -> PartMemory:
    return PartMemory(KEEP, lambda: {prefix(version) for version in needed})


def prefix(version: int, nonce: str = "n") -> str:
    return f"w:run:{version}:0:{nonce}:"


def put(held: PartMemory, version: int, size: int, bucket: int = 0, nonce: str = "n") -> None:
    held.put(part_key(prefix(version, nonce), 0, bucket), [memoryview(bytes([version]) * size)])


def versions(held: PartMemory) -> list[int]:
    return [int(upload.split(":")[2]) for upload in held.uploads("w:")]


def test_the_oldest_uploads_leave_when_there_is_no_room() -> None:
    held = memory()
    for version in (3, 1, 2):
        put(held, version, 30)
    put(held, 4, 35)
    assert (versions(held), held.num_bytes) == ([2, 3, 4], 95)
    put(held, 5, 40)
    assert (versions(held), held.num_bytes) == ([4, 5], 75)


def test_what_makes_head_leaves_last_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    held = memory(needed=(1, 2))
    for version in (1, 2, 3):
        put(held, version, 30)
    put(held, 4, 35)
    assert versions(held) == [1, 2, 4]
    assert caplog.records == []
    put(held, 5, 60)
    assert versions(held) == [2, 5]
    assert "w:run:1:0:n: leaves the memory though servers may need it" in caplog.text
    assert "weightsync.tcp.keep_bytes, now 100" in caplog.text


def test_an_upload_never_evicts_itself_and_one_that_alone_does_not_fit_is_refused_without_harm() -> None:
    held = memory()
    put(held, 1, 30)
    put(held, 2, 40, bucket=0)
    put(held, 2, 40, bucket=1)
    assert versions(held) == [2]
    with pytest.raises(TransportFull, match=r"80 bytes of its upload are here, it has 21, .*keep_bytes is 100"):
        put(held, 2, 21, bucket=2)
    put(held, 2, 20, bucket=2)
    assert held.num_bytes == 100
    with pytest.raises(TransportFull, match="keep_bytes"):
        put(held, 3, 101)
    assert versions(held) == [2], "what is here stays when the new one cannot"


def test_a_part_that_is_put_again_counts_once() -> None:
    held = memory()
    put(held, 1, 60)
    put(held, 1, 60)
    assert held.num_bytes == 60
    assert held.delete(prefix(1)) == 1
    assert held.num_bytes == 0


def test_the_log_is_not_asked_while_there_is_room() -> None:
    held = PartMemory(KEEP, lambda: pytest.fail("nothing must leave"))
    put(held, 1, 50)
    put(held, 2, 50)


def test_bytes_are_kept_as_they_are_and_what_may_change_is_copied() -> None:
    held, frame, scratch = memory(), b"frame", bytearray(b"words")
    held.put(part_key(prefix(1), 0, 0), [memoryview(frame)])
    held.put(part_key(prefix(1), 0, 1), [memoryview(scratch), memoryview(frame)[1:3]])
    scratch[:] = b"wrong"
    view = held.view(part_key(prefix(1), 0, 0), 1, 99)
    assert view is not None
    assert view.obj is frame
    target = memoryview(bytearray(7))
    assert held.copy_into(part_key(prefix(1), 0, 1), target)
    assert bytes(target) == b"wordsra"


def test_a_part_of_another_size_is_not_copied() -> None:
    held = memory()
    put(held, 1, 5)
    with pytest.raises(CorruptDelta, match="has 5 bytes, the record says 6"):
        held.copy_into(part_key(prefix(1), 0, 0), memoryview(bytearray(6)))
    assert not held.copy_into(part_key(prefix(2), 0, 0), memoryview(bytearray(6)))


@given(
    st.lists(st.binary(max_size=9), max_size=6),
    st.integers(0, 60),
    st.integers(1, 20),
)
def test_views_of_any_cut_are_those_of_the_whole(pieces: list[bytes], at: int, most: int) -> None:
    held, key, whole = memory(), part_key(prefix(1), 0, 0), b"".join(pieces)
    held.put(key, [memoryview(piece) for piece in pieces])
    found = b""
    while (view := held.view(key, at + len(found), most)) is not None and len(view):
        assert len(view) <= most
        found += view
    assert found == whole[at:]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.integers(0, 70), st.booleans()), max_size=40))
def test_bytes_are_never_above_the_limit_and_always_counted(steps: list[tuple[int, int, int, bool]]) -> None:
    held = memory(needed=(2, 3))
    for version, bucket, size, deletes in steps:
        if deletes:
            held.delete(prefix(version))
        else:
            try:
                put(held, version, size, bucket)
            except TransportFull:
                continue
            assert held.size(part_key(prefix(version), 0, bucket)) == size
        sizes = [held.size(part_key(upload, 0, b)) or 0 for upload in held.uploads("w:") for b in range(4)]
        assert sum(sizes) == held.num_bytes <= KEEP
