"""The bytes of a group: one msgpack map, schema first, numeric columns as raw little-endian buffers at its end.

    {"schema": 1, "ordinal", "attempt", "source", "extra", "trajectories": [...], "data": bin}

`data` holds the columns of all rows one after another, each padded to 8 bytes: token_ids uint32, logprobs float32,
the mask bit-packed, then the optional columns. Every length is known from the header before `data` is touched. A
blob may be a zstd frame of that map: its first byte cannot begin a map. Nothing in here builds an object from a type
tag.
"""

import struct
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import msgpack
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from buffer.errors import CorruptPayload, TooLarge, TrajectoryError, UnknownSchema
from buffer.trajectory import COLUMN_DTYPES, Group, Row, Span, Trajectory
from buffer.versions import pack, unpack

SCHEMA = 1

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ALIGN = 8
_MAX_ITEMS = 1 << 20
_BIN_LIMIT = 1 << 32

Json = Any  # a part of a decoded msgpack map, which has no static type; each use checks what it finds


def encode(group: Group) -> bytes:
    """The uncompressed bytes of `group`.

    Raises:
        TooLarge: the columns do not fit into one msgpack buffer (4 GiB).
    """
    buffers: list[bytes | memoryview] = []
    head: dict[str, Json] = {
        "schema": SCHEMA,
        "ordinal": group.ordinal,
        "attempt": group.attempt,
        "source": group.data_source,
        "extra": dict(group.extra_info),
        "trajectories": [_trajectory_head(t, buffers) for t in group.trajectories],
    }
    size = sum(map(len, buffers))
    if size >= _BIN_LIMIT:
        raise TooLarge(f"group {group.gid} has {size} bytes of columns; one payload holds less than {_BIN_LIMIT}.")
    # Written by hand, so that the columns are copied once: a map of seven entries, the last of which is `data`.
    packer = msgpack.Packer(use_bin_type=True)
    fields = b"".join(packer.pack(part) for item in head.items() for part in item)
    return b"".join([b"\x87", fields, packer.pack("data"), b"\xc6", struct.pack(">I", size), *buffers])


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
        raise CorruptPayload(f"the payload has {size} bytes uncompressed, at most {max_bytes} are accepted.")
    if bytes(blob[:4]) != _ZSTD_MAGIC:
        return blob
    try:
        return zstandard.ZstdDecompressor().decompress(blob, max_output_size=max_bytes)
    except zstandard.ZstdError as error:
        raise CorruptPayload(f"the payload's compressed frame is damaged: {error}") from error


def xxh3(raw: bytes | memoryview) -> str:
    """The xxh3-64 of uncompressed bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(raw)


def parse(raw: bytes | memoryview) -> Group:
    """The group of uncompressed bytes. Raises CorruptPayload and UnknownSchema as `decode` does."""
    try:
        head = msgpack.unpackb(
            raw,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
            max_str_len=len(raw),
            max_bin_len=len(raw),
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise CorruptPayload(f"the payload is not a msgpack map: {error}") from error
    if not isinstance(head, dict) or "schema" not in head:
        raise CorruptPayload("the payload is no map with a schema number: something else was written under its key.")
    if head["schema"] != SCHEMA:
        raise UnknownSchema(
            f"the payload has schema {head['schema']!r}, this version reads {SCHEMA}. Both clusters must run the same "
            "major version of asyncrl."
        )
    try:
        columns = _Columns(head["data"])
        trajectories = tuple(_trajectory(item, columns) for item in head["trajectories"])
        columns.end()
        return Group(head["ordinal"], head["attempt"], head["source"], trajectories, head["extra"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # TrajectoryError is a ValueError: what contradicts itself was not written by `encode`.
        raise CorruptPayload(f"the payload's header is not that of a group: {type(error).__name__}: {error}") from error


def _trajectory_head(trajectory: Trajectory, buffers: list[bytes | memoryview]) -> dict[str, Json]:
    return {
        "reward": trajectory.reward,
        "reward_error": trajectory.reward_error,
        "reward_parts": dict(trajectory.reward_parts),
        "finish_reason": trajectory.finish_reason,
        "num_turns": trajectory.num_turns,
        "policy": trajectory.policy,
        "extra": dict(trajectory.extra_info),
        "rows": [_row_head(row, buffers) for row in trajectory.rows],
    }


def _row_head(row: Row, buffers: list[bytes | memoryview]) -> dict[str, Json]:
    mask = np.packbits(row.mask, bitorder="little")
    arrays: list[npt.NDArray[Any]] = [row.token_ids, row.logprobs, mask, *row.columns.values()]  # of several dtypes
    for array in arrays:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        buffers.append(little.reshape(-1).view(np.uint8).data)
        if pad := -little.nbytes % _ALIGN:
            buffers.append(bytes(pad))
    return {
        "num_tokens": len(row.token_ids),
        "num_prompt_tokens": row.num_prompt_tokens,
        "spans": [[*unpack(span.version), span.digest, span.num_tokens] for span in row.spans],
        "columns": {name: [array.dtype.name, list(array.shape)] for name, array in row.columns.items()},
    }


def _trajectory(head: Json, columns: "_Columns") -> Trajectory:
    return Trajectory(
        rows=tuple(_row(row, columns) for row in head["rows"]),
        reward=head["reward"],
        reward_error=head["reward_error"],
        reward_parts=head["reward_parts"],
        finish_reason=head["finish_reason"],
        num_turns=head["num_turns"],
        policy=head["policy"],
        extra_info=head["extra"],
    )


def _row(head: Json, columns: "_Columns") -> Row:
    num_tokens = head["num_tokens"]
    token_ids = columns.take("uint32", [num_tokens])
    logprobs = columns.take("float32", [num_tokens])
    packed = columns.take("uint8", [(num_tokens + 7) // 8])
    return Row(
        token_ids=cast("npt.NDArray[np.uint32]", token_ids),
        mask=np.unpackbits(cast("npt.NDArray[np.uint8]", packed), count=num_tokens, bitorder="little").view(np.bool_),
        logprobs=cast("npt.NDArray[np.float32]", logprobs),
        spans=tuple(Span(pack(branch, number), digest, n) for branch, number, digest, n in head["spans"]),
        num_prompt_tokens=head["num_prompt_tokens"],
        columns={name: columns.take(dtype, shape) for name, (dtype, shape) in head["columns"].items()},
    )


@dataclass
class _Columns:
    """Reads the columns off `data` in order; every length is checked against what is left before it is read."""

    data: bytes
    at: int = 0

    def take(self, dtype: str, shape: list[int]) -> npt.NDArray[np.generic]:
        if dtype not in COLUMN_DTYPES or not all(type(n) is int and n >= 0 for n in shape):
            raise TrajectoryError(f"a column of dtype {dtype!r} and shape {shape!r} is not one that is ever written.")
        count, kind = prod(shape), np.dtype(dtype).newbyteorder("<")
        end = self.at + count * kind.itemsize
        if end > len(self.data):
            raise TrajectoryError(f"a column ends at byte {end}, the columns at byte {len(self.data)}.")
        array = np.frombuffer(self.data, kind, count, self.at).reshape(shape)
        self.at = end + -end % _ALIGN
        return cast("npt.NDArray[np.generic]", array)

    def end(self) -> None:
        if self.at != len(self.data):
            raise TrajectoryError(f"{len(self.data)} bytes of columns, but the header describes {self.at}.")


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code} with {len(data)} bytes: a payload has none")
