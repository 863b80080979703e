"""Damaged bytes against every decoder: the fast form of `scripts/bench fuzz`, and what it and its like have found."""

import dataclasses
import struct
import sys
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer import CorruptPayload, Group, Row, TooLarge, Trajectory, TrajectoryError, UnknownSchema, pack, wire
from buffer.wire import decode, encode
from tests.support.fuzz_loop import fuzz, judge
from tests.support.fuzz_targets import TARGETS
from tests.support.groups import group, row

MAX = 1 << 26
INPUTS = {
    "payload": 900,
    "partials": 400,
    "ledger": 600,
    "frame8": 300,
    "frame16": 600,
    "frame32": 300,
    "manifest": 300,
}
"""Of the others 500 each: all of them are some seconds."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_damage_gets_further_than_an_error_of_ours(name: str) -> None:
    """Any other error, code run, memory beyond the bytes, or a value that is not equal to itself sent again, is a
    fault; the report has the smallest input."""
    report = fuzz(TARGETS[name], seed=20, inputs=INPUTS.get(name, 500))
    assert report.faults == {}
    assert 0 < report.outcomes["ok"] < report.inputs, "some of the damage was refused and some was none"
    assert len(report.outcomes) > 5


def test_the_fuzzer_notices_code_that_runs_memory_that_is_taken_and_errors_that_are_not_ours() -> None:
    def bad(blob: bytes) -> bytes:
        if blob == b"code":
            exec("1")
        if blob == b"memory":
            return bytes(1 << 26)
        if blob == b"error":
            raise KeyError("x")
        raise CorruptPayload("y" * 5000)

    target = TARGETS["payload"]
    broken = type(target)(target.refusals, target.valid, target.damage, bad, lambda found: None)
    faults = {blob: judge(broken, blob, memory=True)[1] for blob in (b"code", b"memory", b"error", b"message")}
    assert "exec" in str(faults[b"code"])
    assert faults[b"memory"] == "more memory than its bytes account for"
    assert str(faults[b"error"]).startswith("KeyError")
    assert "more than 2000 characters" in str(faults[b"message"])


def head() -> dict[str, Any]:
    made: dict[str, Any] = msgpack.unpackb(encode(group(1, 1, [pack(1, 1)])))
    return made


def change(**changes: Any) -> bytes:
    return bytes(msgpack.packb({**head(), **changes}))


@pytest.mark.parametrize(
    "blob",
    [
        b"\xdd\xff\xff\xff\xff" * 20,
        b"\xdd\x00\x10\x00\x00" * 20,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff" + b"x" * 90,
        b"\xdb\xff\xff\xff\xff" + b"x" * 90,
        encode(group(1, 1, [pack(1, 1)]))[:22] + b"\xff\xff\xff\xff",
        b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 200 << 20) + b"\x01\x00\x00",
    ],
)
def test_a_hundred_bytes_that_claim_gigabytes_take_none(blob: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptPayload):
            decode(blob, max_bytes=MAX)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_values_of_a_header_are_counted_together_where_it_is_read_and_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each empty list is a byte on the wire and sixty in memory; a cap for each list would cap nothing."""
    monkeypatch.setattr(wire, "MAX_ITEMS", 10_000)
    monkeypatch.setattr(wire, "_COUNTED_HEAD", 5_000)
    empty: list[Any] = [[]] * 100
    crowd, fewer = [empty] * 110, [empty] * 90
    with pytest.raises(CorruptPayload, match="more than 10000 values"):
        decode(change(extra={"a": crowd}), max_bytes=MAX)
    made = group(1, 1, [pack(1, 1)])
    with pytest.raises(TooLarge, match="10000 values"):
        encode(dataclasses.replace(made, extra_info={"a": crowd}))
    made = dataclasses.replace(made, extra_info={"a": fewer})
    assert decode(encode(made), max_bytes=MAX) == made


@pytest.mark.parametrize(
    "blob",
    [
        change(ordinal=b"x" * 1_000_000),
        change(schema="x" * 1_000_000),
        change(extra={"k" * 1_000_000: float("nan")}),
        change(trajectories=[{**head()["trajectories"][0], "policy": ["x" * 1_000_000]}]),
        change(trajectories=[{**head()["trajectories"][0], "finish_reason": "x" * 1_000_000}]),
        change(trajectories=[{**head()["trajectories"][0], "reward": "x" * 1_000_000}]),
    ],
)
def test_a_refusal_is_short_whatever_was_found(blob: bytes) -> None:
    with pytest.raises((CorruptPayload, UnknownSchema)) as refused:
        decode(blob, max_bytes=MAX)
    assert len(str(refused.value)) < 2000


def test_a_deep_value_is_refused_also_where_the_stack_is_deep_already() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]

    def below(depth: int) -> None:
        if depth:
            below(depth - 1)
            return
        with pytest.raises(CorruptPayload):
            decode(change(ordinal=deep), max_bytes=MAX)

    below(sys.getrecursionlimit() - 400)


def test_what_follows_a_compressed_frame_is_not_overlooked() -> None:
    frame = zstandard.ZstdCompressor().compress(encode(group(1, 1, [pack(1, 1)])))
    assert decode(frame, max_bytes=MAX).gid == "1.1"
    with pytest.raises(CorruptPayload):
        decode(frame + b"more", max_bytes=MAX)


def with_columns(**columns: Any) -> Group:
    plain = row([pack(1, 1)])
    fields = (plain.token_ids, plain.mask, plain.logprobs, plain.spans, plain.num_prompt_tokens)
    return Group(1, 1, "s", (Trajectory(rows=(Row(*fields, columns),), reward=0.0),))


def test_a_column_of_booleans_holds_nothing_else() -> None:
    raw = encode(with_columns(seen=np.ones(5, np.bool_)))
    assert raw.count(b"\x01" * 5) == 1
    with pytest.raises(CorruptPayload):
        decode(raw.replace(b"\x01" * 5, b"\x01\x01\x07\x01\x01"), max_bytes=MAX)


@pytest.mark.parametrize("name", [1, b"x", None, ("a", "b")])
def test_a_column_has_a_name_of_text(name: Any) -> None:
    plain = row([pack(1, 1)])
    with pytest.raises(TrajectoryError, match=r"Row\.columns"):
        Row(plain.token_ids, plain.mask, plain.logprobs, plain.spans, 2, {name: np.zeros(5, np.uint8)})


KEYS = st.text(st.characters(codec=None, exclude_categories=()), max_size=4) | st.integers(-3, 3)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.fixed_dictionaries(
        {
            "reward": st.none() | st.floats() | st.integers(-(2**70), 2**70),
            "reward_error": st.none() | KEYS,
            "reward_parts": st.dictionaries(KEYS, st.floats(), max_size=2),
            "num_turns": st.integers(-(2**70), 2**70),
            "policy": KEYS,
            "extra_info": st.dictionaries(KEYS, VALUES, max_size=3),
        }
    ),
    st.integers(-1, 2**70),
    st.integers(0, 2**70),
    KEYS,
    st.dictionaries(KEYS, st.just(np.zeros(5, np.float16)), max_size=2),
)
def test_what_a_group_takes_comes_back_and_what_would_not_is_refused_by_name(
    fields: dict[str, Any], ordinal: int, attempt: int, source: Any, columns: Any
) -> None:
    made, message = None, ""
    try:
        rows = with_columns(**{"c": np.zeros(5, np.int8)}).trajectories[0].rows
        plain = rows[0]
        extra = Row(plain.token_ids, plain.mask, plain.logprobs, plain.spans, 2, columns)
        made = Group(ordinal, attempt, source, (Trajectory(rows=(*rows, extra), **fields),))
    except TrajectoryError as error:
        message = str(error)
    if made is None:
        assert any(name in message for name in ("Row.", "Trajectory.", "Group."))
    else:
        assert decode(encode(made), max_bytes=MAX) == made
