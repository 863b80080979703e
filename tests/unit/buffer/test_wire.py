"""The bytes of a group: what goes in comes out, and what was not written by us does no harm."""

import random
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer import CorruptPayload, Group, Row, Span, Trajectory, UnknownSchema, pack
from buffer.wire import decode, deflate, encode, inflate, xxh3
from tests.support.groups import group, row

MAX = 1 << 20


def rich_group() -> Group:
    columns = {
        "experts": np.arange(16, dtype=np.uint8).reshape(8, 2),
        "teacher": np.linspace(-3, 0, 8, dtype=np.float64),
        "flags": np.array([True, False] * 4),
        "half": np.full((8, 1, 3), 0.5, np.float16),
        "none": np.zeros((8, 0), np.int32),
    }
    mask = np.array([False, False, True, False, True, True, True, False])
    one = Row(
        token_ids=np.array([0, 1, 2**32 - 1, 3, 4, 5, 6, 7], np.uint32),
        mask=mask,
        logprobs=np.where(mask, np.float32(-1e-30), np.float32(0)),
        spans=(Span(pack(1, 2), 2**64 - 1, 1), Span(pack(2**32 - 1, 2**32 - 1), 0, 3)),
        num_prompt_tokens=2,
        columns=columns,
    )
    first = Trajectory(
        rows=(one, row([pack(1, 3)])),
        reward=0.1,
        reward_parts={"answer": 1.0, "format": -0.0},
        finish_reason="length",
        num_turns=3,
        policy="policy",
        extra_info={"text": "naïve 😀", "seed": 2**64 - 1, "neg": -(2**63), "list": [1, [2, {"a": None}]]},
    )
    failed = Trajectory(rows=(row([pack(1, 2)]),), reward=None, reward_error="timeout", finish_reason="abort")
    return Group(2**40, 7, "gsm8k", (first, failed), {"index": 3})


@pytest.mark.parametrize("made", [rich_group(), group(0, 1, []), group(5, 2, [pack(1, 1)] * 5)])
def test_a_group_comes_out_as_it_went_in(made: Group) -> None:
    assert decode(encode(made), max_bytes=MAX) == made
    assert decode(memoryview(deflate(encode(made))), max_bytes=MAX) == made


def test_the_bytes_are_one_msgpack_map_whose_first_field_is_the_schema() -> None:
    head = msgpack.unpackb(encode(rich_group()))
    assert next(iter(head.items())) == ("schema", 1)
    assert list(head)[-1] == "data"


def test_equal_groups_have_equal_bytes_and_the_hash_is_of_the_uncompressed() -> None:
    raw = encode(rich_group())
    assert raw == encode(rich_group())
    assert xxh3(inflate(deflate(raw), max_bytes=MAX)) == xxh3(raw)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_any_row_survives(data: st.DataObject) -> None:
    num_tokens = data.draw(st.integers(1, 40))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=num_tokens, max_size=num_tokens)))
    sampled = int(mask.sum())
    cuts = sorted(data.draw(st.sets(st.integers(1, max(sampled - 1, 1)), max_size=3))) if sampled > 1 else []
    ends = [*cuts, sampled]
    parts = [b - a for a, b in pairwise([0, *ends]) if b > a]
    spans = tuple(Span(data.draw(st.integers(0, 2**64 - 1)), 5, part) for part in parts)
    finite = st.floats(-100, 0, width=32)
    logprobs = np.array([data.draw(finite) if m else 0 for m in mask], np.float32)
    words = st.lists(st.integers(0, 2**32 - 1), min_size=num_tokens, max_size=num_tokens)
    ids = np.array(data.draw(words), np.uint32)
    made = Group(1, 1, "s", (Trajectory(rows=(Row(ids, mask, logprobs, spans, 0),), reward=0.0),))
    assert decode(encode(made), max_bytes=MAX) == made


def test_an_unknown_schema_names_both() -> None:
    head = {**msgpack.unpackb(encode(rich_group())), "schema": 2}
    with pytest.raises(UnknownSchema, match=r"schema 2, this version reads 1"):
        decode(msgpack.packb(head), max_bytes=MAX)


def test_a_field_that_a_newer_minor_version_adds_is_skipped() -> None:
    made = rich_group()
    head = {**msgpack.unpackb(encode(made)), "added_later": [1, 2]}
    assert decode(msgpack.packb(head), max_bytes=MAX) == made


@pytest.mark.parametrize(
    "blob",
    [
        *(b"", b"hello", b"\xc1", b"\x81\xa1", b"\x28\xb5\x2f\xfd"),
        *map(msgpack.packb, ([1, 2], {"a": 1}, {1: 2})),
    ],
)
def test_foreign_bytes_are_a_corrupt_payload(blob: bytes) -> None:
    with pytest.raises(CorruptPayload):
        decode(blob, max_bytes=MAX)


DATA = msgpack.unpackb(encode(group(1, 1, [pack(1, 1)])))["data"]


def change(**changes: Any) -> bytes:
    return bytes(msgpack.packb({**msgpack.unpackb(encode(group(1, 1, [pack(1, 1)]))), **changes}))


def with_row(**changes: Any) -> bytes:
    head = msgpack.unpackb(encode(group(1, 1, [pack(1, 1)])))
    head["trajectories"][0]["rows"][0].update(changes)
    return bytes(msgpack.packb(head))


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (change(data=b"short"), "a column ends at byte"),
        (change(data=DATA + bytes(8)), "but the header describes"),
        (change(trajectories=7), "header is not that of a group"),
        (change(ordinal="1"), "Group.ordinal"),
        (with_row(num_tokens=2**62), "a column ends at byte"),
        (with_row(num_tokens=-1), "not ones that are ever written"),
        (with_row(num_tokens="5"), "header is not that of a group"),
        (with_row(spans=[[1, 1, 0, 99]]), "Row.spans cover 99"),
        (with_row(columns={"x": ["object", [5]]}), "is not one that is ever written"),
        (with_row(columns={"x": ["float64", [2**40, 2**40]]}), "a column ends at byte"),
        (change(extra=msgpack.ExtType(5, b"x")), "extension type 5"),
    ],
)
def test_a_header_that_lies_is_found_before_memory_is_touched(blob: bytes, message: str) -> None:
    with pytest.raises(CorruptPayload, match=message):
        decode(blob, max_bytes=MAX)


def test_a_bomb_is_refused_by_its_announced_size() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (8 * MAX))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptPayload, match="at most"):
        decode(bomb, max_bytes=MAX)
    without_size = zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * (8 * MAX))
    with pytest.raises(CorruptPayload):
        decode(without_size, max_bytes=MAX)
    with pytest.raises(CorruptPayload, match="at most"):
        decode(encode(rich_group()), max_bytes=10)


def test_deep_nesting_is_refused() -> None:
    deep = b"\x81\xa1a" * 5000 + b"\x01"
    with pytest.raises(CorruptPayload):
        decode(deep, max_bytes=MAX)


def test_no_flipped_byte_gets_further_than_an_error_of_ours() -> None:
    raw, draw = encode(rich_group()), random.Random(0)
    for _ in range(600):
        damaged = bytearray(raw)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            assert isinstance(decode(bytes(damaged), max_bytes=MAX), Group)
        except (CorruptPayload, UnknownSchema):
            continue


def test_no_truncation_gets_further_than_an_error_of_ours() -> None:
    for blob in (encode(rich_group()), deflate(encode(rich_group()))):
        for end in range(0, len(blob), 7):
            with pytest.raises(CorruptPayload):
                decode(blob[:end], max_bytes=MAX)


def test_columns_are_views_of_the_bytes_and_not_copies() -> None:
    one = decode(encode(rich_group()), max_bytes=MAX).trajectories[0].rows[0]
    assert one.token_ids.base is not None
    assert one.token_ids.flags.aligned
