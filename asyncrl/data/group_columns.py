"""Groups to the columns of asyncrl/data/group_schema.py and back, bit for bit, whole arrays at a time."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncrl.data.group_schema import COLUMNS, EXTRA_COLUMN, ROW, SPAN
from asyncrl.errors import DataError
from buffer import Group, Row, Span, Trajectory, label, parse_label

Array = Any  # of pyarrow, which ships no types
Text = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class GroupRecord:
    """A group with what the ledger says of it: its state, lag and age, and why a dead one died."""

    group: Group
    state: str = ""
    lag: int = 0
    age_s: float = 0.0
    reason: str = ""
    error: str = ""


def to_table(records: Sequence[GroupRecord], text: Text | None = None) -> pa.Table:
    """One row per trajectory. `text` decodes the tokens of a row; None leaves that column null."""
    each = [(record, i, t) for record in records for i, t in enumerate(record.group.trajectories)]
    plain = {
        "gid": [record.group.gid for record, _, _ in each],
        "ordinal": [record.group.ordinal for record, _, _ in each],
        "attempt": [record.group.attempt for record, _, _ in each],
        "trajectory": [i for _, i, _ in each],
        "num_trajectories": [len(record.group.trajectories) for record, _, _ in each],
        "state": [record.state for record, _, _ in each],
        "data_source": [record.group.data_source for record, _, _ in each],
        "reward": [t.reward for _, _, t in each],
        "reward_error": [t.reward_error for _, _, t in each],
        "reward_parts": [_json(t.reward_parts) for _, _, t in each],
        "finish_reason": [t.finish_reason for _, _, t in each],
        "num_turns": [t.num_turns for _, _, t in each],
        "policy": [t.policy for _, _, t in each],
        "num_tokens": [t.num_tokens for _, _, t in each],
        "num_sampled": [t.num_sampled for _, _, t in each],
        "lag": [record.lag for record, _, _ in each],
        "age_s": [record.age_s for record, _, _ in each],
        "reason": [record.reason for record, _, _ in each],
        "error": [record.error for record, _, _ in each],
        "extra_info": [_json(t.extra_info) for _, _, t in each],
        "group_extra_info": [_json(record.group.extra_info) for record, _, _ in each],
    }
    rows = [row for _, _, t in each for row in t.rows]
    nested = pa.ListArray.from_arrays(_offsets(len(t.rows) for _, _, t in each), _rows_array(rows, text))
    arrays = [nested if field.name == "rows" else pa.array(plain[field.name], type=field.type) for field in COLUMNS]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def _rows_array(rows: Sequence[Row], text: Text | None) -> Array:
    spans = [span for row in rows for span in row.spans]
    columns = [(name, column) for row in rows for name, column in row.columns.items()]
    tokens = _offsets(len(row.token_ids) for row in rows)
    span_array = pa.StructArray.from_arrays(
        [
            pa.array([label(span.version) for span in spans], type=pa.string()),
            pa.array([f"{span.digest:016x}" for span in spans], type=pa.string()),
            pa.array([span.num_tokens for span in spans], type=pa.uint64()),
        ],
        fields=list(SPAN),
    )
    column_array = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in columns], type=pa.string()),
            pa.array([column.dtype.name for _, column in columns], type=pa.string()),
            pa.array([list(column.shape) for _, column in columns], type=pa.list_(pa.int64())),
            pa.array([_little(column) for _, column in columns], type=pa.large_binary()),
        ],
        fields=list(EXTRA_COLUMN),
    )
    texts = [None if text is None else text(row.token_ids.tolist()) for row in rows]
    return pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays(tokens, pa.array(_joined([row.token_ids for row in rows], np.uint32))),
            pa.ListArray.from_arrays(tokens, pa.array(_joined([row.mask for row in rows], np.bool_))),
            pa.ListArray.from_arrays(tokens, pa.array(_joined([row.logprobs for row in rows], np.float32))),
            pa.array([row.num_prompt_tokens for row in rows], type=pa.int64()),
            pa.ListArray.from_arrays(_offsets(len(row.spans) for row in rows), span_array),
            pa.ListArray.from_arrays(_offsets(len(row.columns) for row in rows), column_array),
            pa.array(texts, type=pa.string()),
        ],
        fields=list(ROW),
    )


def trajectories_of(batch: pa.RecordBatch) -> Iterator[Trajectory]:
    """The trajectories of a batch in the types of READ_BACK.

    Raises:
        DataError: a column holds a null, JSON that is none, or values that contradict each other.
    """
    plain = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "rows"}
    rows = iter(_rows(batch.column("rows")))
    num_rows = _lengths(batch.column("rows"), "rows")
    for i, count in enumerate(num_rows):
        try:
            yield Trajectory(
                rows=tuple(next(rows) for _ in range(count)),
                reward=plain["reward"][i],
                reward_error=plain["reward_error"][i],
                reward_parts=_map(plain["reward_parts"][i], "reward_parts"),
                finish_reason=plain["finish_reason"][i],
                num_turns=plain["num_turns"][i],
                policy=plain["policy"][i],
                extra_info=_map(plain["extra_info"][i], "extra_info"),
            )
        except ValueError as error:
            raise DataError(f"trajectory {plain['trajectory'][i]} of group {_gid(plain, i)}: {error}") from None


def _rows(lists: Array) -> Iterator[Row]:
    flat = lists.flatten()
    fields = dict(zip((field.name for field in ROW), flat.flatten(), strict=True))
    tokens = {name: _numpy(fields[name], f"rows.{name}") for name in ("token_ids", "mask", "logprobs")}
    spans, columns = _spans(fields["spans"]), _extra_columns(fields["columns"])
    for num_prompt_tokens in fields["num_prompt_tokens"].to_pylist():
        yield Row(
            token_ids=next(tokens["token_ids"]),
            mask=next(tokens["mask"]),
            logprobs=next(tokens["logprobs"]),
            spans=next(spans),
            num_prompt_tokens=num_prompt_tokens,
            columns=next(columns),
        )


def _numpy(lists: Array, name: str) -> Iterator[npt.NDArray[Any]]:
    """The list of each row as an array; a null in it shows as another dtype, which `Row` refuses."""
    values = lists.flatten().to_numpy(zero_copy_only=False)
    for start, end in pairwise(np.cumsum([0, *_lengths(lists, name)])):
        yield values[start:end]


def _spans(lists: Array) -> Iterator[tuple[Span, ...]]:
    flat = iter(lists.flatten().to_pylist())
    for count in _lengths(lists, "rows.spans"):
        found = [next(flat) for _ in range(count)]
        yield tuple(Span(parse_label(str(s["version"])), _digest(s["digest"]), s["num_tokens"]) for s in found)


def _extra_columns(lists: Array) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
    flat = iter(lists.flatten().to_pylist())
    for count in _lengths(lists, "rows.columns"):
        yield {column["name"]: _column(column) for column in (next(flat) for _ in range(count))}


def _column(stored: Mapping[str, Any]) -> npt.NDArray[np.generic]:
    try:
        kind = np.dtype(stored["dtype"])
        array = np.frombuffer(stored["data"], kind.newbyteorder("<")).reshape(stored["shape"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"rows.columns: {stored['name']!r} is no {stored['dtype']} {stored['shape']}: {error}"
        ) from None
    return cast("npt.NDArray[np.generic]", array.astype(kind, copy=False))


def _digest(text: str) -> int:
    try:
        return int(text, 16)
    except (TypeError, ValueError):
        raise ValueError(f"rows.spans: digest {text!r} is not hexadecimal") from None


def _map(text: str | None, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "")
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is JSON, but no object")
    return value


def _gid(plain: Mapping[str, Sequence[Any]], i: int) -> str:
    return f"{plain['ordinal'][i]}.{plain['attempt'][i]}"


def _lengths(lists: Array, name: str) -> list[int]:
    if lists.null_count:
        raise DataError(f"column {name!r} holds a null where a list was expected")
    return cast("list[int]", lists.value_lengths().to_pylist())


def _offsets(lengths: Iterator[int]) -> Array:
    return pa.array(np.cumsum([0, *lengths], dtype=np.int64).astype(np.int32))


def _joined(arrays: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, kind)


def _little(column: npt.NDArray[np.generic]) -> bytes:
    return np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<")).tobytes()


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
