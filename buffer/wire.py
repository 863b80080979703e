"""The bytes of a group: one msgpack map, schema first, numeric columns as one raw little-endian buffer at its end.

    {"schema": 1, "data_bytes", "ordinal", "attempt", "source", "extra", "trajectories": [...], "pad", "data": bin}

`data` holds the columns of all rows together: all token_ids (uint32), all logprobs (float32), all masks (bit-packed),
then row by row the optional columns, each of them padded to 8 bytes. Together, because one check of a long array
costs what one of a short array does. Every length is known from the header before `data` is touched. `encode` writes
`data_bytes` at a fixed place and pads `data` to a multiple of 8, so that the columns of a decoded group are views of
the blob. A blob may be a zstd frame of that map: its first byte cannot begin a map. Nothing in here builds an object
from a type tag.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from buffer.errors import CorruptPayload, TooLarge, UnknownSchema
from buffer.json_safe import shown
from buffer.row import Row
from buffer.trajectory import Group, Trajectory
from buffer.versions import unpack
from buffer.wire_columns import ALIGN, Columns, group_of

SCHEMA = 1

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_ITEMS = 1 << 20
"""Most values in a header, all nested ones together: each takes up to a hundred bytes once it is decoded."""
_MAX_HEAD = 64 << 20
_COUNTED_HEAD = MAX_ITEMS // 2
"""A header of fewer bytes cannot hold too many values, so they are not counted."""
_BIN_LIMIT = 1 << 32
_FIELDS = 9
_PREFIX = bytes([0x80 | _FIELDS]) + msgpack.packb("schema") + bytes([SCHEMA]) + msgpack.packb("data_bytes") + b"\xce"
_DATA = msgpack.packb("data") + b"\xc6"
_MAX_MESSAGE = 500
_NATIVE = sys.byteorder == "little"

Json = Any  # a part of a decoded msgpack map, which has no static type; each use checks what it finds


def encode(group: Group) -> bytes:
    """The uncompressed bytes of `group`.

    Raises:
        TooLarge: the columns do not fit into one msgpack buffer (4 GiB), or the free-form data has too many values.
    """
    rows = [row for trajectory in group.trajectories for row in trajectory.rows]
    buffers = _column_buffers(rows)
    size = sum(map(len, buffers))
    if size >= _BIN_LIMIT:
        raise TooLarge(f"group {group.gid} has {size} bytes of columns; one payload holds less than {_BIN_LIMIT}.")
    packer = msgpack.Packer(use_bin_type=True)
    fields: dict[str, Json] = {
        "ordinal": group.ordinal,
        "attempt": group.attempt,
        "source": group.data_source,
        "extra": dict(group.extra_info),
        "trajectories": [_trajectory_head(t) for t in group.trajectories],
    }
    # Written by hand, so that the columns are copied once.
    head = b"".join(
        [_PREFIX, struct.pack(">I", size), *(packer.pack(part) for item in fields.items() for part in item)]
    )
    if (len(head) > _COUNTED_HEAD and _num_items(fields) > MAX_ITEMS) or len(head) > _MAX_HEAD:
        raise TooLarge(
            f"group {group.gid} has a header of {len(head)} bytes; one payload holds {MAX_ITEMS} values and "
            f"{_MAX_HEAD} bytes beside its columns. Put less into extra_info."
        )
    pad = packer.pack("pad") + b"\xc4"
    gap = -(len(head) + len(pad) + 1 + len(_DATA) + 4) % ALIGN
    return b"".join([head, pad, bytes([gap]), bytes(gap), _DATA, struct.pack(">I", size), *buffers])


def deflate(raw: bytes) -> bytes:
    """The compressed form of uncompressed bytes; `decode` takes either."""
    return zstandard.ZstdCompressor(level=1).compress(raw)


def decode(blob: bytes | memoryview, *, max_bytes: int) -> Group:
    """The group that `encode` was given.

    Args:
        max_bytes: largest uncompressed size that is accepted; nothing larger is ever allocated.
    Raises:
        CorruptPayload: the bytes are not a group; UnknownSchema: they are of another major version.
    """
    return parse(inflate(blob, max_bytes=max_bytes))


def inflate(blob: bytes | memoryview, *, max_bytes: int) -> bytes | memoryview:
    """The uncompressed bytes of a blob.

    Raises:
        CorruptPayload: a damaged frame, or more than `max_bytes` uncompressed.
    """
    if bytes(blob[:4]) != _ZSTD_MAGIC:
        size = len(blob)
    else:
        try:
            size = zstandard.frame_content_size(blob)
        except zstandard.ZstdError as error:
            raise CorruptPayload(f"the payload's compressed frame is damaged: {error}") from error
    if not 0 <= size <= max_bytes:
        found = f"{size} bytes" if size >= 0 else "a frame that does not say how many bytes it has"
        raise CorruptPayload(f"the payload has {found} uncompressed, at most {max_bytes} are accepted.")
    if bytes(blob[:4]) != _ZSTD_MAGIC:
        return blob
    try:
        return zstandard.ZstdDecompressor().decompress(blob, max_output_size=max_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptPayload(f"the payload's compressed frame is damaged: {error}") from error


def xxh3(raw: bytes | memoryview) -> str:
    """The xxh3-64 of uncompressed bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(raw)


def parse(raw: bytes | memoryview) -> Group:
    """The group of uncompressed bytes. Raises CorruptPayload and UnknownSchema as `decode` does."""
    head, data = _split(raw)
    if not isinstance(head, dict) or "schema" not in head:
        raise CorruptPayload("the payload is no map with a schema number: something else was written under its key.")
    if head["schema"] != SCHEMA or type(head["schema"]) is not int:
        raise UnknownSchema(
            f"the payload has schema {shown(head['schema'])}, this version reads {SCHEMA}. Both clusters must run the "
            "same major version of asyncrl."
        )
    try:
        return group_of(head, Columns(head["data"] if data is None else data))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        # TrajectoryError is a ValueError: what contradicts itself was not written by `encode`.
        text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
        raise CorruptPayload(f"the payload's header is not that of a group: {text}") from error


def _split(raw: bytes | memoryview) -> tuple[Json, memoryview | None]:
    """The header, and the columns if they are where `encode` puts them; otherwise they are in the header."""
    view, begin = memoryview(raw), len(_PREFIX)
    if view[:begin] == _PREFIX and len(view) >= begin + 4:
        (size,) = struct.unpack_from(">I", view, begin)
        at = len(view) - size
        tail = at - len(_DATA) - 4
        if tail >= begin and view[tail:at] == _DATA + struct.pack(">I", size):
            # `data` is cut off: unpacking it would copy it.
            return _unpacked(bytes(view[: tail + len(_DATA) - 1]) + b"\xc0"), view[at:]
    return _unpacked(view), None


def _unpacked(raw: bytes | memoryview) -> Json:
    num_items = 0

    def count(item: Json) -> Json:
        nonlocal num_items
        num_items += len(item)
        if num_items > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} values")
        return item

    hook = count if len(raw) > _COUNTED_HEAD else None
    limit = min(MAX_ITEMS, len(raw))
    try:
        return msgpack.unpackb(
            raw,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            list_hook=hook,
            object_hook=hook,
            max_array_len=limit,
            max_map_len=limit,
            max_str_len=len(raw),
            max_bin_len=len(raw),
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise CorruptPayload(f"the payload is not a msgpack map: {f'{error}'[:_MAX_MESSAGE]}") from error


def _num_items(value: Json) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_num_items, value.values()))
    if isinstance(value, list):
        return len(value) + sum(map(_num_items, value))
    return 0


def _trajectory_head(trajectory: Trajectory) -> dict[str, Json]:
    return {
        "reward": trajectory.reward,
        "reward_error": trajectory.reward_error,
        "reward_parts": dict(trajectory.reward_parts),
        "finish_reason": trajectory.finish_reason,
        "num_turns": trajectory.num_turns,
        "policy": trajectory.policy,
        "extra": dict(trajectory.extra_info),
        "rows": [_row_head(row) for row in trajectory.rows],
    }


def _row_head(row: Row) -> dict[str, Json]:
    return {
        "num_tokens": len(row.token_ids),
        "num_prompt_tokens": row.num_prompt_tokens,
        "spans": [[*unpack(span.version), span.digest, span.num_tokens] for span in row.spans],
        "columns": {name: [array.dtype.name, list(array.shape)] for name, array in row.columns.items()},
    }


def _column_buffers(rows: Sequence[Row]) -> list[bytes | memoryview]:
    """All columns as they are written, with what pads them."""
    mask = np.concatenate([row.mask for row in rows])
    columns: list[list[npt.NDArray[Any]]] = [  # of several dtypes
        [row.token_ids for row in rows],
        [row.logprobs for row in rows],
        [np.packbits(mask, bitorder="little")],
        *([array] for row in rows for array in row.columns.values()),
    ]
    buffers: list[bytes | memoryview] = []
    for column in columns:
        size = 0
        for array in column:
            buffers.append(_bytes_of(array))
            size += array.nbytes
        if pad := -size % ALIGN:
            buffers.append(bytes(pad))
    return buffers


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The little-endian bytes of an array; of one that has them already, without a copy."""
    if _NATIVE and array.flags.c_contiguous and array.dtype.isnative and array.size:
        return array.data.cast("B")
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code} with {len(data)} bytes: a payload has none")
