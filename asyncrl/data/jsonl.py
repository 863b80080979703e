"""JSON Lines: strict records, indexed by byte offset."""

import json
import math
import os
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from asyncrl.data.source import FileRefused, Note, Record, RowRefused
from asyncrl.data.values import Json, excerpt, kind, replace_surrogates

_BOM = b"\xef\xbb\xbf"


class JsonLines:
    """Records of a JSON Lines file. Lines end at a line feed only; blank lines are no records.

    Holds eight bytes a record. Safe to read from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._fd)
        self._starts = array("Q")
        head = os.pread(self._fd, 4096, 0)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise FileRefused("is UTF-16 text; JSON Lines are UTF-8. Convert it (iconv -f utf-16 -t utf-8).")
        if head[:4] == b"PAR1":
            raise FileRefused("is a parquet file under another name. Rename it to end in .parquet.")

    def scan(self) -> Iterator[tuple[str, Record | RowRefused]]:
        """Every record with its line number.

        Raises:
            FileRefused: the file is one JSON array instead of one object a line.
        """
        self._starts = array("Q")
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                start, offset = offset, offset + len(line)
                if number == 1 and line.startswith(_BOM):
                    start, line = start + len(_BOM), line[len(_BOM) :]
                if not line.strip(b" \t\r\n"):
                    continue
                if not self._starts and line.lstrip().startswith(b"["):
                    raise FileRefused(
                        "is a JSON array and not JSON Lines. Write one object a line (jq -c '.[]' does it).",
                        place=f"line {number}",
                    )
                self._starts.append(start)
                try:
                    yield f"line {number}", _record(line)
                except RowRefused as refused:
                    yield f"line {number}", refused

    def read(self, position: int) -> Record:
        """One record again, by seeking to its line."""
        start = self._starts[position]
        last = position + 1 == len(self._starts)
        # Blank lines may follow the record, hence the cut at the first line feed.
        end = os.fstat(self._fd).st_size if last else self._starts[position + 1]
        return _record(os.pread(self._fd, end - start, start).split(b"\n", 1)[0])


def _record(line: bytes) -> Record:
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowRefused("not_utf8", f"is not UTF-8 at byte {error.start + 1}", unreadable=True) from None
    try:
        values = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError as error:
        raise RowRefused(
            "not_json", f"is not JSON: {error.msg} at column {error.colno}: {excerpt(text)}", unreadable=True
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply; an integer beyond Python's limit of digits
        raise RowRefused("not_json", f"is not usable JSON: {excerpt(str(error))}", unreadable=True) from None
    if not isinstance(values, dict):
        raise RowRefused("not_an_object", f"is {kind(values)}, wanted an object with a prompt", unreadable=True)
    if b"\\ud" not in line and b"\\uD" not in line:
        return Record(values)
    clean, num_lone = replace_surrogates(values)
    assert isinstance(clean, dict)
    note = Note("lone_surrogate", f"{num_lone} lone surrogate(s) replaced by U+FFFD")
    return Record(clean, (note,) if num_lone else ())


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        # Readers disagree on which of the two counts, so neither can be trusted.
        raise RowRefused("duplicate_key", f"has the key {excerpt(twice)!r} twice", unreadable=True)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise RowRefused("not_finite", f"holds {name}, which is not JSON", unreadable=True)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise RowRefused("not_finite", f"holds {excerpt(digits)}, which is beyond a float", unreadable=True)
    return value
