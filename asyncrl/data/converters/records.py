"""Records of public files: Parquet, JSON Lines, or JSON files of one record each, in a folder or alone."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from asyncrl.data.converters.base import ConvertedRow, Unusable
from asyncrl.data.source import FileRefused, RowRefused, open_source
from asyncrl.data.values import Json, excerpt, kind
from asyncrl.errors import DataError

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json")
SPLITS = ("train", "test", "validation", "valid", "val", "dev")
MAX_JSON_BYTES = 64 << 20
"""Largest file of a single record; a larger one is JSON Lines under another name."""


@dataclass(frozen=True)
class FoundRecord:
    """A record of a file. split: by the names of the file and of its folders; `train` where none says so."""

    split: str
    place: str
    values: dict[str, Json]


def records_in(path: Path | None) -> Iterator[FoundRecord | Unusable]:
    """Every record of a file, or of all data files below a folder by name.

    Raises:
        DataError: nothing there, or a file that cannot be read on.
    """
    if path is None:
        raise DataError("this converter reads files. Name the file or folder with --from.")
    if not path.exists():
        raise DataError(f"--from {path} does not exist.")
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise DataError(f"--from {path} has no data files below it; they end in {', '.join(SUFFIXES)}.")
    for file in files:
        name = str(file.relative_to(path.parent))
        try:
            for place, found in _records(file):
                if isinstance(found, RowRefused):
                    yield Unusable(f"{name} {place}", found.reason, found.text)
                else:
                    yield FoundRecord(_split(file, path), f"{name} {place}", found)
        except FileRefused as refused:
            raise DataError(f"{file}: {refused}") from None


Make = Callable[[FoundRecord, int], ConvertedRow | Unusable]
"""(record, its number among the rows of its split) -> row."""


def rows_of(path: Path | None, make: Make) -> Iterator[ConvertedRow | Unusable]:
    """A row of each record, numbered by split; records that make none are passed on. Raises DataError: see above."""
    counts = Counter[str]()
    for record in records_in(path):
        made = record if isinstance(record, Unusable) else make(record, counts[record.split])
        if isinstance(made, ConvertedRow):
            counts[made.split] += 1
        yield made


def _records(file: Path) -> Iterator[tuple[str, dict[str, Json] | RowRefused]]:
    if file.suffix == ".json" and (whole := _whole(file)) is not None:
        for number, value in enumerate(whole if isinstance(whole, list) else [whole]):
            place = f"record {number}" if isinstance(whole, list) else "as a whole"
            if isinstance(value, dict):
                yield place, value
            else:
                yield place, RowRefused("not_an_object", f"is {kind(value)}, wanted an object")
        return
    for place, record in open_source(file).scan():
        yield place, record if isinstance(record, RowRefused) else record.values


def _whole(file: Path) -> Json:
    """The file as one JSON value; None: it is none, so its lines are."""
    if file.stat().st_size > MAX_JSON_BYTES:
        return None
    try:
        found: Json = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    return found


def _split(file: Path, root: Path) -> str:
    """The nearest name that says a split: of the file, else of a folder from there up to the one that was named."""
    names = [file.stem, *(parent.name for parent in file.parents if parent.is_relative_to(root))]
    for name in names:
        words = name.lower().replace("-", "_").replace(".", "_").split("_")
        for split in SPLITS:
            if split in words:
                return split
    return "train"


def text_of(record: FoundRecord, key: str) -> str | Unusable:
    """A column that must hold text."""
    value = record.values.get(key)
    if isinstance(value, str) and value.strip():
        return value
    if key not in record.values:
        columns = ", ".join(map(repr, record.values)) or "none"
        return Unusable(record.place, "no_column", f"has no {key!r} (it has {excerpt(columns)})")
    found = "empty" if isinstance(value, str) else kind(value)
    return Unusable(record.place, "no_text", f"its {key} is {found}, wanted text")
