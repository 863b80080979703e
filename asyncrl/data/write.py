"""Rows to a parquet file, as plain columns that any reader of verl's schema understands."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write `rows` to the parquet file `path`; nested lists and maps become nested columns.

    Raises:
        OSError: the file cannot be written.
        pyarrow.ArrowInvalid: the rows of a column differ in type.
    """
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
