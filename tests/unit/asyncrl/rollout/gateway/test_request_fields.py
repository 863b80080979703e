"""A wrong field is named, with what was found and what was expected."""

from typing import Any

import pytest

from asyncrl.rollout.gateway.conversation import ProtocolError
from asyncrl.rollout.gateway.request_fields import (
    FieldTable,
    Refused,
    names,
    read_count,
    read_number,
    read_parts,
    read_stops,
)

TABLE = FieldTable(names("model"), names("user"), {"n": Refused((1,), "One answer each.")})


def refusal(call: Any, *args: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        call(*args)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request")
    return caught.value


def test_fields_are_known_ignored_or_refused_and_null_is_absent() -> None:
    TABLE.check({"model": 5, "user": object, "n": 1, "unknown": None})  # type: ignore[dict-item]  # never looked at
    assert "n: found 2. One answer each." in refusal(TABLE.check, {"n": 2}).message
    assert "temprature: this gateway knows no such field" in refusal(TABLE.check, {"temprature": 1}).message


def test_no_error_repeats_a_long_value_or_name() -> None:
    """B142."""
    long = "x" * 1_000_000
    for name, value in ((long, 1), ("n", long), ("n", [long]), ("n", {long: long})):
        assert len(refusal(TABLE.check, {name: value}).message) < 400
    assert len(refusal(read_count, long, "max_tokens").message) < 200
    assert len(refusal(read_parts, [{"type": long}], "content", ("text",), "").message) < 300


@pytest.mark.parametrize("value", ["1", True, -0.1, 2.1, float("inf"), float("nan"), [], {}, 10**400])
def test_a_number_outside_its_range_is_refused_with_the_range(value: Any) -> None:
    assert "t: found" in (message := refusal(read_number, value, "t", 0, 2).message)
    assert "a number from 0 to 2" in message
    assert len(message) < 200


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1"])
def test_a_count_is_an_integer_of_at_least_one(value: Any) -> None:
    assert "an integer of at least 1" in refusal(read_count, value, "max_tokens").message


@pytest.mark.parametrize("value", [3, [3], [""], "", ["x"] * 17])
def test_stops_are_texts_and_not_many(value: Any) -> None:
    assert "stop" in refusal(read_stops, value, "stop").message


def test_stops_are_one_text_or_several() -> None:
    assert (read_stops(None, "stop"), read_stops("a", "stop")) == ((), ("a",))
    assert read_stops(["a", "b"], "stop") == ("a", "b")


def test_parts_of_text_are_joined_and_other_parts_named() -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_parts(parts, "c", ("text",), "\n") == "a\nb"
    image: Any = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert 'c[1].type: found "image_url", expected text.' in refusal(read_parts, image, "c", ("text",), "").message
    assert "c: found 3, expected a string or a list of parts." in refusal(read_parts, 3, "c", ("text",), "").message
