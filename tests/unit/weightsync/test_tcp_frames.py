"""What strangers and readers may send to a part server: nothing but a request that is right gets anything."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.errors import TransportError
from weightsync.transport.base import part_key
from weightsync.transport.tcp import greeting
from weightsync.transport.tcp.frames import (
    LENGTH,
    MAX_ANSWER,
    MAX_GREETING,
    MAX_REQUEST,
    RANGE_BYTES,
    BadFrame,
    Channel,
    Delete,
    Get,
    Uploads,
    fields_of,
    frame,
    length_of,
    request_of,
)
from weightsync.transport.tcp.memory import PartMemory
from weightsync.transport.tcp.peer import READ_BYTES, PartGone, Peer

SECRET = greeting.secret_of(b"k" * 32, "run")
KEY = part_key("w:run:5:4:n:", 0, 0)
PART = bytes(range(256)) * 40


def held() -> PartMemory:
    memory = PartMemory(1 << 20, set)
    memory.put(KEY, [memoryview(PART)])
    return memory


class Talk:
    """A reader that is in step with a peer."""

    def __init__(self, memory: PartMemory | None = None, secret: bytes = SECRET) -> None:
        self.memory = memory or held()
        self.peer = Peer(self.memory, SECRET)
        self.hello = self.owed()
        theirs = fields_of(self.hello[LENGTH.size :])[2]
        ours = os.urandom(greeting.NONCE_BYTES)
        self.peer.take(greeting.introduction(secret, theirs, ours))
        self.welcome = fields_of(self.owed()[LENGTH.size :])
        self.requests, self.answers = greeting.channels(secret, theirs, ours)

    def owed(self, most: int = 1000) -> bytes:
        """All that the peer owes, in pieces."""
        found = b""
        while self.peer.owes:
            view = self.peer.next_bytes(most)
            assert 0 < len(view) <= most
            found += view
            self.peer.sent(len(view))
        return found

    def ask(self, *request: object) -> tuple[list[object], bytes]:
        """The answer, and the bytes of a part behind it."""
        self.peer.take(self.requests.seal(request, MAX_REQUEST))
        found = self.owed()
        end = LENGTH.size + length_of(found[: LENGTH.size], MAX_ANSWER)
        return self.answers.open(found[LENGTH.size : end]), found[end:]


def test_a_reader_with_the_secret_gets_ranges_sizes_and_listings() -> None:
    talk = Talk()
    assert talk.peer.trusted
    size = len(PART)
    assert talk.ask("get", KEY, size, 0, size) == (["part"], PART)
    assert talk.ask("get", KEY, size, 100, 7) == (["part"], PART[100:107])
    assert talk.ask("get", KEY, size, size, 0) == (["part"], b"")
    assert talk.ask("get", KEY, size + 1, 0, 1) == (["size", size], b"")
    assert talk.ask("get", part_key("w:run:6:5:n:", 0, 0), 1, 0, 1) == (["missing"], b"")
    assert talk.ask("uploads", "w:run:") == (["uploads", ["w:run:5:4:n:"]], b"")
    assert talk.ask("delete", "w:run:5:") == (["deleted", 1], b"")
    assert talk.ask("get", KEY, size, 0, 1) == (["missing"], b"")


def test_requests_that_come_together_are_answered_one_after_the_other() -> None:
    talk = Talk()
    asked = [talk.requests.seal(["get", KEY, len(PART), at, 3], MAX_REQUEST) for at in (0, 50)]
    talk.peer.take(b"".join(asked))
    first = talk.answers, talk.owed()
    assert first[1].count(PART[0:3]) == 1
    assert first[1].endswith(PART[50:53])


def test_a_reader_without_the_secret_is_refused_and_hears_why() -> None:
    talk = Talk(secret=greeting.secret_of(b"x" * 32, "run"))
    assert not talk.peer.trusted
    assert talk.peer.ends
    assert talk.welcome[0] == "refused"
    assert "weightsync.key" in talk.welcome[1]
    talk.peer.take(Channel(b"").seal(["delete", "w:"], MAX_REQUEST))
    assert not talk.peer.owes
    assert talk.memory.size(KEY) == len(PART)


def test_the_secret_is_that_of_one_key_and_one_run() -> None:
    secrets = {greeting.secret_of(key, run) for key in (None, b"a" * 32, b"b" * 32) for run in ("run", "run2", "")}
    assert len(secrets) == 9


def test_a_server_that_cannot_prove_the_secret_is_not_believed() -> None:
    ours, theirs = bytes(32), bytes(range(32))
    for secret in (greeting.secret_of(None, "run"), greeting.secret_of(b"k" * 32, "other")):
        fields = fields_of(greeting.welcome(secret, theirs, ours)[LENGTH.size :])
        with pytest.raises(TransportError, match=r"did not prove that it has weightsync\.key"):
            greeting.check_welcome(fields, SECRET, theirs, ours, "tcp://a:1")
    # A proof that was overheard, or our own turned around, proves nothing for other nonces.
    overheard = fields_of(greeting.welcome(SECRET, theirs, bytes([1]) * 32)[LENGTH.size :])
    mirrored = [fields_of(greeting.introduction(SECRET, theirs, ours)[LENGTH.size :])[1]]
    for fields in (overheard, mirrored):
        with pytest.raises(TransportError, match="did not prove"):
            greeting.check_welcome(fields, SECRET, theirs, ours, "tcp://a:1")


def test_a_server_of_another_protocol_or_no_part_server_at_all_is_told_apart() -> None:
    hello = fields_of(greeting.hello(bytes(32))[LENGTH.size :])
    assert greeting.nonce_of_hello(hello, "x") == bytes(32)
    with pytest.raises(TransportError, match="protocol 9, this build 1"):
        greeting.nonce_of_hello([hello[0], 9, hello[2]], "x")
    with pytest.raises(TransportError, match="refuses: all its 3 connections"):
        greeting.nonce_of_hello(["refused", "all its 3 connections"], "x")
    for fields in ([], ["asyncrl", 1, bytes(32)], [hello[0], 1, bytes(31)], [hello[0], "1", bytes(32)]):
        with pytest.raises(BadFrame, match="no part server"):
            greeting.nonce_of_hello(fields, "x")


def test_a_frame_that_is_repeated_left_out_or_changed_on_the_way_ends_the_connection() -> None:
    talk = Talk()
    first, second, third = (talk.requests.seal(["delete", f"w:{i}"], MAX_REQUEST) for i in range(3))
    talk.peer.take(first)
    talk.owed()
    for wrong in (first, third, second[:-1] + bytes([second[-1] ^ 1])):
        fresh = Talk()
        fresh.peer.take(fresh.requests.seal(["delete", "w:0"], MAX_REQUEST))
        fresh.owed()
        with pytest.raises(BadFrame, match="seal is wrong"):
            fresh.peer.take(wrong)
    talk.peer.take(second)
    assert talk.owed()


@pytest.mark.parametrize(
    "fields",
    [
        ["get", KEY, 10, 0, 11],
        ["get", KEY, 10, 5, 6],
        ["get", KEY, 10, -1, 3],
        ["get", KEY, 10, 0, -1],
        ["get", KEY, 10, 11, 0],
        ["get", KEY, 1 << 40, 0, RANGE_BYTES + 1],
        ["get", KEY, 10, 0, True],
        ["get", KEY, 10.0, 0, 1],
        ["get", KEY, 10, 0],
        ["get", b"w:", 10, 0, 1],
        ["put", KEY, b"mine"],
        ["delete", 3],
        ["delete"],
        ["uploads", "w:", "x"],
        [["get"]],
        [None],
    ],
)
def test_what_is_no_request_is_refused(fields: list[object]) -> None:
    with pytest.raises(BadFrame, match="no request"):
        request_of(fields)


def test_requests_are_read_as_they_were_written() -> None:
    assert request_of(["get", KEY, 10, 3, 7]) == Get(KEY, 10, 3, 7)
    assert request_of(["delete", "w:"]) == Delete("w:")
    assert request_of(["uploads", ""]) == Uploads("")


def test_a_key_that_is_none_ends_the_connection_and_not_the_server() -> None:
    with pytest.raises(BadFrame, match="whose key is none"):
        Talk().ask("get", "w:run:5", 1, 0, 1)


@pytest.mark.parametrize("length", [0, MAX_REQUEST + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_is_refused_before_anything_is_read_for_it(length: int) -> None:
    for peer in (Peer(held(), SECRET), Talk().peer):
        while peer.owes:
            peer.sent(len(peer.next_bytes(99)))
        with pytest.raises(BadFrame, match=f"claims {length} bytes"):
            peer.take(struct.pack("<I", length))


def test_a_frame_of_deeply_nested_lists_is_refused_in_few_words() -> None:
    for depth in (200, 1000, MAX_REQUEST - 1):
        nested = b"\x91" * depth + b"\xc0"
        with pytest.raises(BadFrame) as caught:
            request_of(fields_of(nested))
        assert len(str(caught.value)) < 500


def test_a_part_that_leaves_while_it_is_sent_ends_the_connection() -> None:
    talk = Talk()
    talk.peer.take(talk.requests.seal(["get", KEY, len(PART), 0, len(PART)], MAX_REQUEST))
    for _ in range(3):
        talk.peer.sent(len(talk.peer.next_bytes(100)))
    talk.memory.delete("w:")
    with pytest.raises(PartGone):
        talk.peer.next_bytes(100)


def test_a_listing_too_long_for_one_answer_is_cut() -> None:
    memory = PartMemory(1 << 20, set)
    for version in range(3000):
        memory.put(part_key(f"w:{'r' * 60}:{version}:0:n:", 0, 0), [memoryview(b"x")])
    (_, named), _ = Talk(memory).ask("uploads", "w:")
    assert isinstance(named, list)
    assert 500 < len(named) < 3000


def test_a_name_too_long_for_the_protocol_is_refused_where_it_is_asked() -> None:
    with pytest.raises(BadFrame, match="too long"):
        Channel(b"").seal(["delete", "w" * MAX_REQUEST], MAX_REQUEST)
    assert len(frame(["x" * 900], MAX_GREETING)) < MAX_GREETING


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_whatever_comes_is_refused_or_waited_for_and_never_more_than_a_request_is_held(
    pieces: list[bytes], greeted: bool
) -> None:
    talk = Talk()
    peer = talk.peer if greeted else Peer(talk.memory, SECRET)
    while peer.owes:
        peer.sent(len(peer.next_bytes(999)))
    try:
        for piece in pieces:
            peer.take(piece[:READ_BYTES])
            assert len(peer._inbox) <= MAX_REQUEST + LENGTH.size + READ_BYTES
            assert not peer.owes, "nothing is owed to whoever sends noise"
    except BadFrame:
        pass
    assert talk.memory.size(KEY) == len(PART)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(["get", "delete", "uploads", KEY, "w:", "", 0, 1, len(PART)]) | JUNK, max_size=6))
def test_a_trusted_reader_that_asks_for_nonsense_is_refused_or_answered_within_bounds(fields: list[object]) -> None:
    talk = Talk()
    try:
        answer, behind = talk.ask(*fields)
    except BadFrame:
        return
    assert answer[0] in ("part", "missing", "size", "deleted", "uploads")
    assert len(behind) <= len(PART)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_from_a_server_that_is_none_are_refused_in_words(body: bytes) -> None:
    for check in (
        lambda fields: greeting.nonce_of_hello(fields, "x"),
        lambda fields: greeting.check_welcome(fields, SECRET, bytes(32), bytes(32), "x"),
    ):
        with pytest.raises(TransportError):
            check(fields_of(body))
