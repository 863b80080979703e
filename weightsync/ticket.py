"""What a host leaves for the loader inside its server: a ticket, and parts that are checked and decompressed.

stdlib and numpy only, since the server's environment has nothing of ours but this package. In the stage directory:

  ticket.json          what to apply: versions, digests, and where each bucket's planes lie in the parts file
  parts-*.bin          planes or raw words, each aligned to 8 bytes
  layout-<id>.json     tensors of the model; read once per layout
  plan-<id>.json       segments of the buckets; read once per plan
  status-<rank>.json   what the loader answered last, with its reason in words

The ticket is replaced last, by rename, so that it never names a file that is not complete.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from weightsync.diff_numpy import SKIP
from weightsync.errors import CorruptDelta, TransportFull
from weightsync.layout import MAX_BUCKET_WORDS, WORD_DTYPE, Bucket, Segment, TensorSpec, Words
from weightsync.planes import Planes, check_planes, need

FORMAT = 1
TICKET = "ticket.json"
_ALIGN = 8

Kind = Literal["delta", "anchor", "inspect"]


@dataclass(frozen=True)
class Entry:
    """One bucket's place in the parts file. Dense: `at` is where its words begin; sparse: its gap plane."""

    bucket: int
    dense: bool
    num_changed: int
    num_gaps: int
    num_escaped: int
    at: int


@dataclass(frozen=True)
class Ticket:
    """What to apply.

    Attributes:
        kind: delta: only on `base`; anchor: on whatever the engine holds; inspect: nothing, only report.
        base, base_digest: what the engine must hold; None for an anchor.
        target, digest: what it holds afterwards.
        layout, plan: ids; their files lie beside the ticket.
        model_dir: what the server started from.
        parts: name of the parts file, "" if there is none.
        num_bytes: of the parts file.
    """

    kind: Kind
    base: int | None
    base_digest: int | None
    target: int
    digest: int
    layout: str
    plan: str
    model_dir: str
    parts: str
    num_bytes: int
    entries: tuple[Entry, ...] = ()
    format: int = FORMAT


class Staged(NamedTuple):
    """One bucket of a ticket: its planes, or its words."""

    bucket: Bucket
    planes: Planes | None
    dense: Words | None


class PartsWriter:
    """Writes a parts file, bucket by bucket."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name
        self._temporary = directory / f".{name}.tmp"
        self._stream: BinaryIO = self._temporary.open("wb")
        self._at = 0
        self.entries: list[Entry] = []

    def add(self, bucket: Bucket, planes: Planes | None, dense: Words | None) -> None:
        """Append a bucket's planes or words."""
        self._pad()
        at = self._at
        if planes is None:
            assert dense is not None
            self._write(dense)
            self.entries.append(Entry(bucket.id, True, bucket.num_words, 0, 0, at))
            return
        for plane in (planes.gaps, planes.values, planes.escaped):
            self._pad()
            self._write(plane)
        self.entries.append(Entry(bucket.id, False, planes.num_changed, planes.gaps.size, planes.escaped.size, at))

    def finish(self) -> int:
        """Put the file in its place; returns its size."""
        self._stream.close()
        self._temporary.replace(self._path)
        return self._at

    def abandon(self) -> None:
        """Remove what was written."""
        self._stream.close()
        self._temporary.unlink(missing_ok=True)

    def _write(self, array: np.ndarray[Any, Any]) -> None:
        self._stream.write(np.ascontiguousarray(array).data)
        self._at += array.nbytes

    def _pad(self) -> None:
        gap = -self._at % _ALIGN
        self._stream.write(bytes(gap))
        self._at += gap


def put_json(path: Path, content: object) -> None:
    """Replace a small file.

    Raises:
        TransportFull: the stage directory has no room.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content, separators=(",", ":")))
        temporary.replace(path)
    except OSError as error:
        raise TransportFull(f"{path} could not be written: {error}. Make room, or set weightsync.stage_dir.") from error


def put_ticket(directory: Path, ticket: Ticket) -> None:
    """The last step of staging."""
    fields = asdict(ticket)
    fields["entries"] = [[int(value) for value in asdict(entry).values()] for entry in ticket.entries]
    put_json(directory / TICKET, fields)


def put_layout(directory: Path, layout: str, tensors: Sequence[TensorSpec]) -> None:
    """The model's tensors, unless they are there already."""
    path = directory / f"layout-{layout}.json"
    if not path.exists():
        put_json(path, [[spec.name, spec.dtype, list(spec.shape), spec.offset] for spec in tensors])


def put_plan(directory: Path, plan: str, buckets: Sequence[Bucket], tensors: Sequence[TensorSpec]) -> None:
    """The buckets' segments, unless they are there already."""
    path = directory / f"plan-{plan}.json"
    if not path.exists():
        index = {spec.name: i for i, spec in enumerate(tensors)}
        put_json(path, [[b.width, [[index[s.tensor], s.start, s.words] for s in b.segments]] for b in buckets])


def read_ticket(directory: Path) -> Ticket:
    """The ticket, with its types and ranges checked.

    Raises:
        CorruptDelta: it is missing, or not a ticket.
    """
    try:
        fields = json.loads((directory / TICKET).read_text())
        if fields.pop("format") != FORMAT:
            raise CorruptDelta("the ticket has another format than this loader: host and server run different asyncrl.")
        fields["entries"] = tuple(
            Entry(bucket, bool(dense), *rest) for bucket, dense, *rest in _ints(fields["entries"])
        )
        ticket = Ticket(**fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, CorruptDelta):
            raise
        raise CorruptDelta(f"{directory / TICKET} cannot be read ({error!r}). The host stages it again.") from error
    known = ticket.kind in ("delta", "anchor", "inspect") and (ticket.base is None) == (ticket.kind != "delta")
    for value in (ticket.target, ticket.digest, ticket.num_bytes, ticket.base or 0, ticket.base_digest or 0):
        known = known and isinstance(value, int) and 0 <= value < 1 << 64
    names = (ticket.layout, ticket.plan, ticket.parts)
    if not known or any(not isinstance(name, str) or os.sep in name for name in names):
        raise CorruptDelta(f"{directory / TICKET} contradicts itself. The host stages it again.")
    return ticket


def read_layout(directory: Path, layout: str) -> tuple[TensorSpec, ...]:
    """The model's tensors. Raises CorruptDelta."""
    try:
        rows = json.loads((directory / f"layout-{layout}.json").read_text())
        return tuple(TensorSpec(name, dtype, tuple(shape), offset) for name, dtype, shape, offset in rows)
    except (OSError, ValueError, TypeError) as error:
        raise CorruptDelta(f"layout {layout} cannot be read ({error!r}). The host stages it again.") from error


def read_plan(directory: Path, plan: str, tensors: Sequence[TensorSpec]) -> tuple[Bucket, ...]:
    """The buckets, each inside its tensors. Raises CorruptDelta."""
    try:
        rows = json.loads((directory / f"plan-{plan}.json").read_text())
        buckets = []
        for i, (width, segments) in enumerate(rows):
            runs = []
            for index, start, words in _ints(segments):
                spec = tensors[index]
                inside = min(index, start) >= 0 and words > 0 and start + words <= spec.num_words
                if not inside or spec.width != width:
                    raise ValueError(f"segment {start}+{words} of {spec.name}")
                runs.append(Segment(spec.name, start, words))
            buckets.append(Bucket(i, 0, width, tuple(runs)))
        return tuple(buckets)
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise CorruptDelta(f"plan {plan} cannot be read ({error!r}). The host stages it again.") from error


def read_parts(directory: Path, ticket: Ticket, buckets: Sequence[Bucket]) -> list[Staged]:
    """Every bucket of the ticket with its planes or words, checked; they look into the mapped file.

    Raises:
        CorruptDelta: a bucket does not lie in the file, or its planes do not add up.
    """
    if not ticket.parts:
        return []
    path = directory / ticket.parts
    try:
        size = path.stat().st_size
        # Copy on write: torch wants writable memory, the file stays as it is.
        # A plain view of the map: each slice of a memmap is made by Python code.
        data = np.asarray(np.memmap(path, np.uint8, mode="c")) if size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:
        raise CorruptDelta(f"{path} cannot be read ({error!r}). The host stages it again.") from error
    need(size == ticket.num_bytes, str(path), "size", size, ticket.num_bytes)
    seen: set[int] = set()
    found: list[Staged] = []
    for entry in ticket.entries:
        where = f"bucket {entry.bucket} of {path.name}"
        need(0 <= entry.bucket < len(buckets) and entry.bucket not in seen, where, "id", entry.bucket, "a new one")
        seen.add(entry.bucket)
        bucket = buckets[entry.bucket]
        cursor = _Cursor(data, entry.at, where)
        if entry.dense:
            words = cursor.take(bucket.num_bytes).view(WORD_DTYPE[bucket.width])
            found.append(Staged(bucket, None, words))
            continue
        limits = (entry.num_changed, entry.num_gaps, entry.num_escaped)
        need(min(limits) >= 0 and max(limits) <= MAX_BUCKET_WORDS * 2, where, "counts", limits, "sizes of planes")
        gaps = cursor.take(entry.num_gaps)
        values = cursor.take((entry.num_changed + 1) >> 1)
        escaped = cursor.take(entry.num_escaped * bucket.width).view(WORD_DTYPE[bucket.width])
        need(gaps.size <= bucket.num_words + bucket.num_words // SKIP, where, "gap bytes", gaps.size, "fewer")
        planes = Planes(gaps, values, escaped, entry.num_changed)
        check_planes(planes, bucket.num_words, where)
        found.append(Staged(bucket, planes, None))
    return found


class _Cursor:
    def __init__(self, data: np.ndarray[Any, Any], at: int, where: str) -> None:
        self._data, self._at, self._where = data, at, where

    def take(self, size: int) -> np.ndarray[Any, Any]:
        at = self._at + (-self._at % _ALIGN)
        need(at >= 0 and at + size <= self._data.size, self._where, "end", at + size, f"at most {self._data.size}")
        self._at = at + size
        return self._data[at : at + size]


def _ints(rows: Any) -> Iterator[list[int]]:
    for row in rows:
        if any(type(value) is not int for value in row):
            raise ValueError(f"{row} are not integers")
        yield row
