"""The seam between file formats: records of plain values by position, each with what was odd about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asyncrl.data.values import Json
from asyncrl.errors import DataError


class FileRefused(DataError):
    """A file that cannot be read on: where reading stopped, and what is there instead. Its name is added above."""

    def __init__(self, text: str, *, place: str = "the file") -> None:
        super().__init__(text)
        self.text, self.place = text, place

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class RowRefused(Exception):
    """A row that cannot be used: a reason to count by and a text. Unreadable ones stop a strict run; a `fatal` one
    stops any, since whether it is used must not depend on who reads it."""

    def __init__(self, reason: str, text: str, *, unreadable: bool = False, fatal: bool = False) -> None:
        super().__init__(reason, text)
        self.reason, self.text, self.unreadable, self.fatal = reason, text, unreadable, fatal


@dataclass(frozen=True)
class Note:
    """Something odd about a row that stays usable."""

    reason: str
    text: str


@dataclass(frozen=True)
class Record:
    """One record of a file as plain values."""

    values: dict[str, Json]
    notes: tuple[Note, ...] = ()


class Source(Protocol):
    """Records of one file, in data/jsonl and data/parquet. A position counts records from 0, refused ones included."""

    path: Path

    def scan(self) -> Iterator[tuple[str, Record | RowRefused]]:
        """All records in order, each with its place in words; needed once before `read`."""
        ...

    def read(self, position: int) -> Record:
        """One record again, without reading the others. Raises RowRefused if it was refused."""
        ...


def open_source(path: Path) -> Source:
    """The reader for a file, chosen by the end of its name.

    Raises:
        FileRefused: no such file, no known format, or its content is another.
    """
    if not path.exists():
        raise FileRefused("does not exist. Check data.train_files and data.val_files.")
    if path.is_dir():
        raise FileRefused("is a directory. List the .parquet or .jsonl files in it.")
    if path.suffix == ".parquet":
        from asyncrl.data.parquet import Parquet  # pyarrow takes a third of a second to import

        return Parquet(path)
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        from asyncrl.data.jsonl import JsonLines

        return JsonLines(path)
    raise FileRefused(
        f"has a name that ends in {path.suffix!r}; data files end in .parquet or .jsonl (also .ndjson, .json)."
    )
