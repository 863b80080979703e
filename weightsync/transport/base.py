"""The seam of the transports: parts under keys that are written once. Head is the log's."""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Protocol
from urllib.parse import quote

from weightsync.errors import DeadlineExceeded
from weightsync.log.records import Upload

_UPLOAD_FIELDS = 5


class Transport(Protocol):
    """Moves parts. In transport/directory, object_store, redis and tcp; held to tests/contract/test_transport.py.

    A key ends in its writer's nonce, rank and bucket, so nothing is ever overwritten; a call may be repeated after a
    lost answer. Thread-safe.

    Raises (all methods):
        TransportError: the parts cannot be reached.
    """

    parts_outlive_writer: bool
    """Can parts be got when the process that put them has ended?"""

    parallel_gets: int
    """How many gets of one reader at once bring parts sooner: more where each of them waits long for little."""

    def announce(self, branch: int, rank: int) -> None:
        """This process puts the parts of `rank` under `branch`; said once the branch is claimed, before the first put.

        A transport that leaves parts with their writer opens its door here and tells the log where it is.

        Raises:
            Fenced: a newer branch owns the log.
        """
        ...

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        """Store the bytes of `parts`, end to end, under `key`.

        Raises:
            TransportFull: no room.
            DeadlineExceeded: not done in `deadline_s` seconds.
        """
        ...

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        """Fill `target` with the part, whose size the record tells; returns the bytes read.

        Raises:
            PartMissing: there is no such part, or a piece of it is gone.
            CorruptDelta: the part has another size.
            DeadlineExceeded: not done in `deadline_s` seconds.
        """
        ...

    def delete(self, prefix: str) -> int:
        """Remove every part whose key starts with `prefix`; returns how many. Repeatable."""
        ...

    def uploads(self, prefix: str) -> list[str]:
        """Prefixes (up to the nonce and its colon) of all uploads that start with `prefix`, finished or not."""
        ...

    def close(self) -> None: ...


def run_prefix(run: str) -> str:
    """What every key of a run starts with; a colon in a run's name cannot reach into another's."""
    return f"w:{quote(run, safe='')}:"


def upload_prefix(run: str, upload: Upload) -> str:
    """What the keys of one upload's parts start with."""
    return f"{run_prefix(run)}{upload.version}:{upload.base}:{upload.nonce}:"


def part_key(prefix: str, rank: int, bucket: int) -> str:
    """`w:<run>:<version>:<base>:<nonce>:<rank>:<bucket>`."""
    return f"{prefix}{rank}:{bucket}"


def split_key(key: str) -> tuple[str, str]:
    """(upload prefix, `<rank>:<bucket>`) of a part's key."""
    fields = key.split(":")
    if len(fields) != _UPLOAD_FIELDS + 2:
        raise ValueError(f"{key!r} is not a part's key: expected w:<run>:<version>:<base>:<nonce>:<rank>:<bucket>.")
    return ":".join(fields[:_UPLOAD_FIELDS]) + ":", ":".join(fields[_UPLOAD_FIELDS:])


def upload_version(prefix: str) -> int:
    """The version that an upload's prefix names."""
    return int(prefix.split(":")[2])


class Deadline:
    """Seconds that a call may take, looked at between its steps."""

    def __init__(self, seconds: float, what: str) -> None:
        self._end = monotonic() + seconds
        self._seconds, self.what = seconds, what

    def check(self) -> None:
        """Raises DeadlineExceeded once the time is up."""
        if self.left() <= 0:
            raise self.exceeded()

    def exceeded(self, why: str = "") -> DeadlineExceeded:
        """What to raise when the time is up. `why`: what was waited for, as a sentence."""
        told = f"{self.what}: not done in {self._seconds:.1f} s."
        return DeadlineExceeded(
            f"{told}{' ' * bool(why)}{why} The version is not affected; check the transport's load, or raise "
            "weightsync.publish_deadline_s and weightsync.stage_deadline_s."
        )

    def left(self) -> float:
        """Seconds left, negative when over."""
        return self._end - monotonic()


def chunks(parts: Sequence[memoryview], size: int) -> Iterator[memoryview | bytes]:
    """The bytes of `parts` in chunks of `size` (the last one shorter, at least one), copied only across a seam."""
    pending: list[memoryview] = []
    held = 0
    emitted = False
    for part in parts:
        view = memoryview(part).cast("B")
        while held + len(view) >= size:
            take = size - held
            yield b"".join([*pending, view[:take]]) if pending else view[:take]
            pending, held, emitted, view = [], 0, True, view[take:]
        if len(view):
            pending.append(view)
            held += len(view)
    if pending or not emitted:
        yield pending[0] if len(pending) == 1 else b"".join(pending)
