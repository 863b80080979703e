"""Parquet: records of plain values, read by row group."""

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.data.source import FileRefused, Note, Record, RowRefused
from asyncrl.data.values import NotPlain, plain

_MAGIC = b"PAR1"
BATCH_ROWS = 512
CACHE_BYTES = 256 << 20  # decoded row groups kept: rows are drawn in random order, a group is decoded as a whole


class Parquet:
    """Records of a parquet file. Holds its footer and the row groups used last. Safe to read from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_magic(path)
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise FileRefused(f"is not a readable parquet file: {error}") from None
        counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def scan(self) -> Iterator[tuple[str, Record | RowRefused]]:
        """Every record with its row number, streamed in batches.

        Raises:
            FileRefused: a data page is damaged.
        """
        row = 0
        try:
            for batch in self._file.iter_batches(batch_size=BATCH_ROWS):
                for values in batch.to_pylist(maps_as_pydicts="lossy"):
                    try:
                        yield f"row {row}", _record(values)
                    except RowRefused as refused:
                        yield f"row {row}", refused
                    row += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileRefused(f"is damaged: {error}", place=f"row {row}") from None

    def read(self, position: int) -> Record:
        """One record again, from its row group."""
        group = bisect_right(self._ends, position)
        first = self._ends[group - 1] if group else 0
        with self._lock:
            values = self._group(group).slice(position - first, 1).to_pylist(maps_as_pydicts="lossy")[0]
        return _record(values)

    def _group(self, group: int) -> pa.Table:
        if group not in self._groups:
            self._groups[group] = self._file.read_row_group(group)
            while len(self._groups) > 1 and sum(table.nbytes for table in self._groups.values()) > CACHE_BYTES:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return self._groups[group]


def check_magic(path: Path) -> None:
    """See that a file begins and ends as parquet does.

    Raises:
        FileRefused: it is something else, or was cut off.
    """
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - 4))
        tail = file.read(4)
    if head != _MAGIC:
        looks_like = " It looks like JSON: rename it to end in .jsonl." if head[:1] in (b"{", b"[") else ""
        raise FileRefused(f"has content that is not parquet (it starts with {head!r}).{looks_like}")
    if tail != _MAGIC or size < 12:
        raise FileRefused(
            f"is not a complete parquet file: its {size} bytes end without a footer, as after a copy that was cut "
            "off. Copy or write it again."
        )


def _record(values: dict[str, object]) -> Record:
    clean, notes = {}, []
    for name, value in values.items():
        try:
            clean[name] = plain(value, name)
        except NotPlain as error:
            if isinstance(value, bytes):  # an image beside the prompt; the row itself may be fine
                notes.append(Note("binary_column", f"column {name!r} holds bytes and was left out"))
                continue
            raise RowRefused("not_plain", f"{error.field} {error.text}", unreadable=True) from None
    return Record(clean, tuple(notes))
