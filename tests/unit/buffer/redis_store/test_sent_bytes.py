"""What `Connections` puts on the wire: the commands that it was given, however large, in pieces of at most 1 MiB."""

from collections.abc import Iterable

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.redis_store.connections import Command, Connections

PIECE = 1 << 20


class Wire:
    """A connection that keeps what it was given to send."""

    pieces: tuple[bytes | memoryview, ...] = ()

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: Iterable[bytes | memoryview]) -> None:
        self.pieces = tuple(command)

    def read_response(self) -> bytes:
        return b"OK"


def sent(commands: list[Command]) -> tuple[list[list[bytes]], list[int]]:
    """The commands as a server reads them, and the sizes of the pieces that it got."""
    wire = Wire()
    assert Connections(lambda: wire, {}, 1.0).try_all(commands) == [b"OK"] * len(commands)
    reader = hiredis.Reader()
    for piece in wire.pieces:
        reader.feed(bytes(piece))
    found = [reader.gets() for _ in commands]
    assert reader.gets() is False, "more bytes than the commands have"
    return found, [len(piece) for piece in wire.pieces]


def bytes_of(commands: list[Command]) -> list[list[bytes]]:
    return [[part if isinstance(part, bytes) else str(part).encode() for part in command] for command in commands]


parts = st.one_of(
    st.binary(max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([(1 << 15) - 1, 1 << 15, (1 << 15) + 1, 300_000]).map(lambda size: b"\r\n" * size),
)


@settings(max_examples=40)
@given(st.lists(st.lists(parts, min_size=1, max_size=5), min_size=1, max_size=4))
def test_the_server_reads_the_commands_that_were_given(commands: list[Command]) -> None:
    found, sizes = sent(commands)
    assert found == bytes_of(commands)
    assert max(sizes) <= PIECE


@pytest.mark.parametrize("num_bytes", [0, 150_000, PIECE - 200])
def test_a_transaction_with_the_payload_of_a_usual_group_is_one_piece(num_bytes: int) -> None:
    commands: list[Command] = [
        ("MULTI",),
        ("SET", "payload:a", bytes(num_bytes), "NX"),
        ("EVALSHA", "a" * 40, 0),
        ("EXEC",),
    ]
    found, sizes = sent(commands)
    assert found == bytes_of(commands)
    assert len(sizes) == 1


def test_a_larger_payload_is_not_copied() -> None:
    blob = bytes(3 * PIECE + 5)
    wire = Wire()
    Connections(lambda: wire, {}, 1.0).try_all([("SET", "payload:a", blob, "NX")])
    assert [len(piece) for piece in wire.pieces[1:-1]] == [PIECE, PIECE, PIECE, 5]
    assert all(isinstance(piece, memoryview) and piece.obj is blob for piece in wire.pieces[1:-1])
