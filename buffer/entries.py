"""What a trainer sees of groups: entries of the books, seen from its version, and how many are fetched together."""

from collections.abc import Iterator, Sequence

from buffer import staleness
from buffer.answers import Entry, LeftGroup
from buffer.store import Left, Taken

_FETCH_BYTES = 1 << 20
"""Of more at once the first is out of the processor's caches before it is decoded: in parts of 4 MiB a group costs its
reader a tenth more."""


def in_parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Some entries at a time, together at most 1 MiB but for a single larger one: what is fetched in one go."""
    part: list[Entry] = []
    num_bytes = 0
    for entry in entries:
        if part and num_bytes + entry.num_bytes > _FETCH_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(entry)
        num_bytes += entry.num_bytes
    if part:
        yield part


def entry_of(taken: Taken, number: int, now_ms: int) -> Entry:
    """What the buffer shows of a group, seen from the version `number`."""
    card, index = taken.card, taken.card.index
    return Entry(
        ordinal=taken.ordinal,
        attempt=card.attempt,
        key=card.key,
        num_bytes=index.num_bytes,
        xxh3=index.xxh3,
        lag=staleness.lag(number, taken.effective),
        tokens=index.tokens,
        sampled=index.sampled,
        rewards=index.rewards,
        data_source=index.data_source,
        age_s=max(0, now_ms - card.since_ms) / 1000,
    )


def left_of(left: Left, number: int) -> LeftGroup:
    """What the trainer is told of a group that left at a lease, seen from the version `number`."""
    index = left.index
    return LeftGroup(
        ordinal=left.ordinal,
        attempt=left.attempt,
        reason="stale",
        outcome=left.outcome,
        lag=staleness.lag(number, left.effective),
        tokens=index.tokens,
        sampled=index.sampled,
        data_source=index.data_source,
    )
