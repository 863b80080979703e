"""From a decoded header and its columns to a group: every length is checked before it is used, all rows at once."""

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from buffer.errors import TrajectoryError
from buffer.json_safe import shown
from buffer.row import COLUMN_DTYPES, Row, Span
from buffer.trajectory import Group, Trajectory
from buffer.versions import pack

ALIGN = 8

Json = Any  # a part of a decoded msgpack map, which has no static type; each use checks what it finds

_KINDS = {name: np.dtype(name).newbyteorder("<") for name in COLUMN_DTYPES}
_UINT32, _FLOAT32, _UINT8 = _KINDS["uint32"], _KINDS["float32"], _KINDS["uint8"]


@dataclass(slots=True)
class Columns:
    """Reads the columns in order; every length is checked against what is left before it is read."""

    data: bytes | memoryview
    at: int = 0

    def take(self, dtype: str, shape: list[int]) -> npt.NDArray[np.generic]:
        """The next column, as a view.

        Raises:
            TrajectoryError: no such dtype or shape is ever written, or it is longer than what is left.
        """
        if type(dtype) is not str or dtype not in _KINDS or not all(type(n) is int and n >= 0 for n in shape):
            raise TrajectoryError(
                f"a column of dtype {shown(dtype)} and shape {shown(shape)} is not one that is ever written."
            )
        count, kind = prod(shape), _KINDS[dtype]
        end = self.at + count * kind.itemsize
        if end > len(self.data):
            raise TrajectoryError(f"a column ends at byte {end}, the columns at byte {len(self.data)}.")
        array = np.frombuffer(self.data, kind, count, self.at).reshape(shape)
        self.at = end + -end % ALIGN
        if dtype == "bool" and count and array.view(np.uint8).max() > 1:
            raise TrajectoryError("a column of dtype bool holds other bytes than 0 and 1.")
        return cast("npt.NDArray[np.generic]", array)

    def take_flat(self, kind: np.dtype[np.generic], count: int) -> npt.NDArray[Any]:
        """`take` for one of our own dtypes and a count that was checked: three in every group."""
        end = self.at + count * kind.itemsize
        if end > len(self.data):
            raise TrajectoryError(f"a column ends at byte {end}, the columns at byte {len(self.data)}.")
        array = np.frombuffer(self.data, kind, count, self.at)
        self.at = end + -end % ALIGN
        return array

    def end(self) -> None:
        """Raises TrajectoryError if anything is left."""
        if self.at != len(self.data):
            raise TrajectoryError(f"{len(self.data)} bytes of columns, but the header describes {self.at}.")


def group_of(head: Json, columns: Columns) -> Group:
    """The group of a header.

    Raises:
        TrajectoryError, KeyError, TypeError, ValueError, AttributeError: it was not written by `wire.encode`.
    """
    lengths = [row["num_tokens"] for trajectory in head["trajectories"] for row in trajectory["rows"]]
    if not all(type(n) is int and n >= 1 for n in lengths):
        raise TrajectoryError(f"rows of {shown(lengths)} tokens are not ones that are ever written.")
    total = sum(lengths)
    token_ids = columns.take_flat(_UINT32, total)
    logprobs = columns.take_flat(_FLOAT32, total)
    mask = np.unpackbits(columns.take_flat(_UINT8, (total + 7) // 8), count=total, bitorder="little").view(np.bool_)
    # Checked here for all rows, and in each row by its counts; a single row that fails says which number it was.
    # `find` in the bytes takes a third of the time of numpy's `any` and `all`.
    sound = np.isfinite(logprobs).tobytes().find(0) < 0 and ((logprobs != 0) > mask).tobytes().find(1) < 0
    marks = mask.tobytes()
    trajectories, at = [], 0
    for one in head["trajectories"]:
        rows = []
        for row in one["rows"]:
            end = at + row["num_tokens"]
            in_prompt = marks.find(1, at, at + max(row["num_prompt_tokens"], 0)) >= 0
            arrays = (token_ids[at:end], mask[at:end], logprobs[at:end])
            rows.append(_row(row, arrays, columns, sound and not in_prompt))
            at = end
        trajectories.append(_trajectory(one, tuple(rows)))
    columns.end()
    return Group(head["ordinal"], head["attempt"], head["source"], tuple(trajectories), head["extra"])


def _row(
    head: Json,
    arrays: tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_], npt.NDArray[np.float32]],
    columns: Columns,
    sound: bool,
) -> Row:
    spans = tuple([Span(pack(branch, number), digest, n) for branch, number, digest, n in head["spans"]])
    named: dict[str, Json] = head["columns"]
    if sound and named == {}:
        return Row.of_sound_arrays(*arrays, spans, head["num_prompt_tokens"])
    extra = {name: columns.take(dtype, shape) for name, (dtype, shape) in named.items()}
    return Row(*arrays, spans, head["num_prompt_tokens"], extra)


def _trajectory(head: Json, rows: tuple[Row, ...]) -> Trajectory:
    return Trajectory(
        rows=rows,
        reward=head["reward"],
        reward_error=head["reward_error"],
        reward_parts=head["reward_parts"],
        finish_reason=head["finish_reason"],
        num_turns=head["num_turns"],
        policy=head["policy"],
        extra_info=head["extra"],
    )
