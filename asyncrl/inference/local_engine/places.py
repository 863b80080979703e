"""Where the numbers of a matrix lie in a copy that is laid out for products.

oneDNN does not say how it packs, and does so in blocks of a size by CPU and dtype. So the places are found: numbers
that say where they come from are packed, and looked for. What is found is tried on every copy that is made (`copies`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.inference.local_engine.kv_cache import Int64
from asyncrl.inference.local_engine.products import LAYOUTS, Kind, Shape

WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
"""Integers as wide as a dtype: places and bits are compared, not numbers."""

_MOST_MARKS = 65_535  # that 16 bits tell apart


class Places(NamedTuple):
    """Number [i, j] of a matrix [out, in] is number row[i] + column[j] of its copy's memory; [out] and [in]."""

    row: Int64
    column: Int64


def memory_of(copy: Tensor) -> Tensor:
    """[n] all of a copy's memory, padding included, in its dtype; valid while the copy is.

    Raises:
        AttributeError, RuntimeError: this torch does not say where a packed copy lies.
    """
    if copy.layout == torch.strided:
        return copy.view(-1)
    num_bytes, address = torch.ops.mkldnn._nbytes(copy), torch.ops.mkldnn.data_ptr(copy)
    held = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
    return torch.from_numpy(held).view(copy.dtype)


@cache
@torch.inference_mode()
def places_of(kind: Kind, shape: Shape, dtype: torch.dtype) -> Places | None:
    """Of a matrix that is laid out as `kind` has it; None where they are not found."""
    num_rows, num_columns = shape
    if kind == "plain":
        return Places(np.arange(num_rows) * num_columns, np.arange(num_columns))
    if kind == "transposed":
        return Places(np.arange(num_rows), np.arange(num_columns) * num_rows)
    try:
        return _traced(kind, shape, dtype)
    except (AttributeError, RuntimeError):
        return None


def _traced(kind: Kind, shape: Shape, dtype: torch.dtype) -> Places | None:
    """By the first column and the first row: in blocked layouts a row adds the same to every column's place."""
    num_rows, num_columns = shape
    rows = np.concatenate([np.arange(num_rows), np.zeros(num_columns - 1, np.int64)])
    columns = np.concatenate([np.zeros(num_rows, np.int64), np.arange(1, num_columns)])
    found = np.full(len(rows), -1, np.int64)
    for first in range(0, len(rows), _MOST_MARKS):
        part = slice(first, first + _MOST_MARKS)
        marks = np.arange(1, len(rows[part]) + 1).astype(np.uint16)
        marked = torch.zeros(shape, dtype=WORDS[dtype])
        marked.numpy()[rows[part], columns[part]] = marks.view(np.int16)
        copy = LAYOUTS[kind].lay_out(marked.view(dtype))
        memory = memory_of(copy).view(WORDS[dtype]).numpy()
        where = np.flatnonzero(memory)
        number = memory[where].astype(np.int64) & 0xFFFF
        if len(where) != len(marks) or not np.array_equal(np.sort(number), np.arange(1, len(marks) + 1)):
            return None
        found[first + number - 1] = where
    row, first_row = found[:num_rows], found[num_rows:]
    return Places(row, np.concatenate([row[:1], first_row]) - row[0])
