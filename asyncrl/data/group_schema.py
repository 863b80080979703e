"""The columns of a file of groups: one row per trajectory, with all that the buffer holds of it, for people and replay.

A row of a trajectory (`rows`) is one context: its tokens, which of them were sampled, their logprobs, and spans that
say under which version of the weights. Maps of free form are JSON text. A further per-token column is its bytes,
little endian, with dtype and shape: numpy.frombuffer(data, dtype).reshape(shape).
"""

import pyarrow as pa

from asyncrl.errors import DataError

SCHEMA_NUMBER = 1
ABOUT = b"asyncrl_groups"
"""Key of the file's metadata: JSON with the schema number, the run, its record, and the version it had trained."""

SPAN = pa.struct([("version", pa.string()), ("digest", pa.string()), ("num_tokens", pa.uint64())])
EXTRA_COLUMN = pa.struct(
    [("name", pa.string()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64())), ("data", pa.large_binary())]
)
ROW = pa.struct(
    [
        ("token_ids", pa.list_(pa.uint32())),
        ("mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("num_prompt_tokens", pa.int64()),
        ("spans", pa.list_(SPAN)),
        ("columns", pa.list_(EXTRA_COLUMN)),
        ("text", pa.string()),
    ]
)
COLUMNS = pa.schema(
    [
        ("gid", pa.string()),
        ("ordinal", pa.int64()),
        ("attempt", pa.int64()),
        ("trajectory", pa.int32()),
        ("num_trajectories", pa.int32()),
        ("state", pa.string()),
        ("data_source", pa.string()),
        ("reward", pa.float64()),
        ("reward_error", pa.string()),
        ("reward_parts", pa.string()),
        ("finish_reason", pa.string()),
        ("num_turns", pa.int64()),
        ("policy", pa.string()),
        ("num_tokens", pa.int64()),
        ("num_sampled", pa.int64()),
        ("lag", pa.int64()),
        ("age_s", pa.float64()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("rows", pa.list_(ROW)),
        ("extra_info", pa.string()),
        ("group_extra_info", pa.string()),
    ]
)

PLACE = ("ordinal", "attempt", "trajectory", "num_trajectories")
"""What tells which rows are one group."""

READ_BACK = pa.schema(
    [
        COLUMNS.field(name)
        for name in (
            *PLACE,
            *("data_source", "reward", "reward_error", "reward_parts", "finish_reason", "num_turns", "policy"),
            *("rows", "extra_info", "group_extra_info"),
        )
    ]
)
"""The columns that make a group again; the others are for people."""


def checked(found: pa.Schema) -> None:
    """See that a file has every column that makes a group, in a type that can be read as ours.

    Raises:
        DataError: naming the first column that is missing or of another type, with what was found and expected.
    """
    for field in READ_BACK:
        at = found.get_field_index(field.name)
        if at < 0:
            raise DataError(
                f"has no column {field.name!r}; its columns are {', '.join(found.names) or 'none'}. Expected a file of "
                "groups, as `asyncrl buffer export` writes it."
            )
        try:
            pa.array([], type=found.field(at).type).cast(field.type)
        except pa.ArrowException:
            raise DataError(
                f"has a column {field.name!r} of type {found.field(at).type}, expected {field.type}. Expected a file "
                "of groups, as `asyncrl buffer export` writes it."
            ) from None


def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch in our types: another writer may have used wider lists or numbers.

    Raises:
        DataError: naming the column whose values do not fit.
    """
    arrays = []
    for field in READ_BACK:
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise DataError(f"column {field.name!r} does not fit {field.type}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=READ_BACK)
