"""Plain JSON values: what a row may hold, and how foreign values become that."""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

# What 64-bit fields hold; larger integers stay exact as Python ints but are reported with their field.
SMALLEST_INT, LARGEST_INT = -(2**63), 2**64 - 1
EXCERPT_CHARS = 60
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotPlain(ValueError):
    """A value that JSON cannot hold. `field` is its dotted path, the text says what it is."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(field, text)
        self.field, self.text = field, text


def excerpt(text: str) -> str:
    """The beginning of a text on one line, for messages: a row of a megabyte must not end up in a log."""
    line = " ".join(text[: 2 * EXCERPT_CHARS].split())
    return line if len(text) <= EXCERPT_CHARS else line[:EXCERPT_CHARS] + "..."


def kind(value: object) -> str:
    """The name a reader of JSON knows a value's type by."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def plain(value: object, field: str = "") -> Json:
    """A value of a columnar file as plain JSON, with the padding of structs (keys that are null) dropped.

    Dates and times become ISO text, decimals the text of their digits (an int when whole), NaN becomes null, because
    that is how data frames write a missing number.
    Raises:
        NotPlain: bytes, infinities and anything else that JSON has no form for.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise NotPlain(field, "is infinite, which JSON cannot hold")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        fields = ((str(key), plain(item, f"{field}.{key}" if field else str(key))) for key, item in value.items())
        return {key: item for key, item in fields if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item, f"{field}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else str(value)
    raise NotPlain(field, f"holds {type(value).__name__}, which JSON cannot hold")


def drop_nulls(value: Json) -> Json:
    """The value without object keys that are null, at any depth; list items stay, their places mean something."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [drop_nulls(item) for item in value]
    return value


def replace_surrogates(value: Json) -> tuple[Json, int]:
    """The value with every lone surrogate replaced by U+FFFD, and how many there were.

    JSON may escape half of a surrogate pair. Such a string cannot be encoded: it would fail later in the tokenizer,
    on the wire or in a log.
    """
    if isinstance(value, str):
        return _SURROGATE.subn("\ufffd", value)
    if isinstance(value, list):
        items = [replace_surrogates(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        fields = [(replace_surrogates(key), replace_surrogates(item)) for key, item in value.items()]
        return {str(key): item for (key, _), (item, _) in fields}, sum(a + b for (_, a), (_, b) in fields)
    return value, 0


def oversized_ints(value: Json, field: str) -> Iterator[str]:
    """Dotted paths of the integers that do not fit 64 bits."""
    if isinstance(value, int) and not SMALLEST_INT <= value <= LARGEST_INT:
        yield field
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from oversized_ints(item, f"{field}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from oversized_ints(item, f"{field}[{i}]")
