"""Files of groups: written a few megabytes at a time under another name until whole, read back group by group."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.data.group_columns import GroupRecord, Text, to_table, trajectories_of
from asyncrl.data.group_schema import ABOUT, COLUMNS, PLACE, READ_BACK, SCHEMA_NUMBER, cast, checked
from asyncrl.data.parquet import check_magic
from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.data.source import FileRefused
from asyncrl.errors import DataError
from buffer import Group, Trajectory

FLUSH_BYTES = 8 << 20  # of tokens and columns; a row group of a file, and what a writer holds at most beside one group
READ_TRAJECTORIES = 64  # a batch of a reader: what it holds at most beside one group
REPEATED = ("gid", "state", "data_source", "reward_error", "finish_reason", "policy", "reason")
"""Columns of few different values, which a dictionary makes small."""


class GroupFileWriter:
    """Writes groups to a parquet file, which appears under its name when all of them are in; a context manager.

    Args:
        path: the file; it must not exist unless `overwrite`.
        about: of the run, for the file's metadata.
        text: decodes tokens for the column of texts; None leaves it empty.
    Raises:
        DataError: the file exists, or cannot be written.
    """

    def __init__(
        self, path: Path, about: Mapping[str, object], *, text: Text | None = None, overwrite: bool = False
    ) -> None:
        if path.exists() and not overwrite:
            raise DataError(f"{path} exists already, and would be lost. Name another file, or pass --overwrite.")
        self._path, self._text = path, text
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
        self._records: list[GroupRecord] = []
        self._num_bytes = 0
        described = json.dumps({"schema": SCHEMA_NUMBER, **about})
        self._schema = COLUMNS.with_metadata({ABOUT: described.encode()})
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        try:
            self._writer = pq.ParquetWriter(
                self._draft, self._schema, compression="zstd", use_dictionary=list(REPEATED), write_page_checksum=True
            )
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def add(self, record: GroupRecord) -> None:
        """Take one group in. What was taken before may be written out.

        Raises:
            DataError: the disk is full, or gone.
        """
        self._records.append(record)
        self._num_bytes += sum(_num_bytes(trajectory) for trajectory in record.group.trajectories)
        if self._num_bytes >= FLUSH_BYTES:
            self._flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
            if self._writer is not None:
                self._writer.close()
            if kind is None:
                self._draft.replace(self._path)
        except OSError as failed:
            raise self._unwritable(failed) from failed
        finally:
            self._draft.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._records:
            assert self._writer is not None, "the writer is used as a context manager"
            table = to_table(self._records, self._text).replace_schema_metadata(self._schema.metadata)
            try:
                self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            except OSError as error:
                raise self._unwritable(error) from error
        self._records, self._num_bytes = [], 0

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(f"{self._path} cannot be written: {error}. Nothing is left of it; name a file elsewhere.")


@dataclass(frozen=True)
class StoredGroup:
    """A group as it lies in a file; whoever imports it gives it an ordinal of the new run."""

    ordinal: int
    attempt: int
    data_source: str
    trajectories: tuple[Trajectory, ...]
    extra_info: Mapping[str, object]

    def as_group(self, ordinal: int, attempt: int) -> Group:
        """The group under another ordinal and attempt."""
        return Group(ordinal, attempt, self.data_source, self.trajectories, self.extra_info)


class GroupFile:
    """A file of groups, checked for its form when it is opened: its columns, and that every group is whole.

    Attributes:
        about: what the file says of the run that it is of; empty if another program wrote it.
        sizes: trajectories of each group, in order.
        answers: those of them that were sampled; a greedy answer is the baseline of the others.
    Raises:
        DataError: no such file, not parquet, cut off, other columns, another schema number, or a group in pieces.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():
                raise FileRefused("does not exist, or is no file. Expected what `asyncrl buffer export` wrote.")
            check_magic(path)
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            checked(self._file.schema_arrow)
            self.about = _about(self._file.schema_arrow.metadata or {})
            self.sizes, self.answers = self._whole_groups()
        except FileRefused as error:
            raise DataError(f"{path} {error.text}") from None
        except DataError as error:
            raise DataError(f"{path} {error}") from None
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a readable parquet file: {error}") from None

    def groups(self) -> Iterator[StoredGroup]:
        """Every group, in the order of the file; memory is bounded by the largest group and a batch.

        Raises:
            DataError: a page is damaged or a value impossible; says at which row. What came before was whole.
        """
        row, trajectories = 0, list[Trajectory]()
        try:
            for batch in self._file.iter_batches(batch_size=READ_TRAJECTORIES, columns=READ_BACK.names):
                batch = cast(batch)
                facts = batch.select([*PLACE, "data_source", "group_extra_info"]).to_pylist()
                for fact, trajectory in zip(facts, trajectories_of(batch), strict=True):
                    trajectories.append(trajectory)
                    row += 1
                    if len(trajectories) == fact["num_trajectories"]:
                        yield _stored(fact, trajectories)
                        trajectories = []
        except DataError as error:
            raise DataError(f"{self.path} row {row}: {error}") from None
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path} is damaged behind row {row}: {error}") from None

    def _whole_groups(self) -> tuple[list[int], list[int]]:
        """How many trajectories and answers each group has; refuses a file that lacks some, or has them apart."""
        sizes: list[int] = []
        answers: list[int] = []
        row, due, group = 0, 0, (0, 0)
        for batch in self._file.iter_batches(columns=[*PLACE, "policy"]):
            for fact in batch.to_pylist():
                ordinal, attempt, index, count = (fact[name] for name in PLACE)
                if index == 0 and due == 0 and isinstance(count, int) and count > 0:
                    group, due = (ordinal, attempt), count
                    sizes.append(count)
                    answers.append(0)
                elif due == 0 or (ordinal, attempt) != group or index != sizes[-1] - due or count != sizes[-1]:
                    raise DataError(_in_pieces(row, fact, group, due))
                answers[-1] += fact["policy"] != GREEDY_BASELINE
                due -= 1
                row += 1
        if due:
            raise DataError(_in_pieces(row, None, group, due))
        return sizes, answers


def _stored(fact: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> StoredGroup:
    gid = f"{fact['ordinal']}.{fact['attempt']}"
    try:
        extra = json.loads(fact["group_extra_info"] or "")
        group = Group(0, 1, fact["data_source"], tuple(trajectories), extra)
    except (ValueError, AttributeError) as error:
        raise DataError(f"group {gid}: data_source or group_extra_info cannot be used: {error}") from None
    return StoredGroup(fact["ordinal"], fact["attempt"], group.data_source, group.trajectories, group.extra_info)


def _about(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    if ABOUT not in metadata:
        return {}
    try:
        about = dict(json.loads(metadata[ABOUT]))
    except (ValueError, TypeError) as error:
        raise DataError(f"has metadata {ABOUT.decode()!r} that is no JSON object: {error}. Export it again.") from None
    if about.get("schema") != SCHEMA_NUMBER:
        raise DataError(
            f"is a file of groups of schema {about.get('schema')}, this version reads {SCHEMA_NUMBER}. Import it with "
            "the version of asyncrl that exported it."
        )
    return about


def _in_pieces(row: int, fact: Mapping[str, Any] | None, group: tuple[int, int], due: int) -> str:
    found = "ends" if fact is None else "has " + ", ".join(f"{name} {fact[name]}" for name in PLACE)
    expected = f"trajectories of group {group[0]}.{group[1]}: {due} are missing" if due else "trajectory 0 of a group"
    return (
        f"row {row}: the file {found}, expected {expected}. A group is imported whole, since its statistics are of all "
        "its trajectories: keep all rows of a group, sorted by ordinal, attempt and trajectory."
    )


def _num_bytes(trajectory: Trajectory) -> int:
    return sum(
        array.nbytes
        for row in trajectory.rows
        for array in (row.token_ids, row.mask, row.logprobs, *row.columns.values())
    )
