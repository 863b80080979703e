"""How old is too old: pure arithmetic on effective numbers. Lua compares the integers that these functions give.

Symbols (protocols, section 3): limit = largest lag that may be trained on; per_version = groups consumed per version
(B); ahead = open ordinals below the one in question; taken = groups leased since the last advance and not given back.
Effective numbers make the tree of versions a line, so that a lag is a plain difference: see
`buffer.versions.effective`.
"""

from collections.abc import Iterable, Mapping

# Effective number of a group without a sampled token: older than nothing, so no limit ever reaches it. A Lua number.
NEVER_STALE = 1 << 52


def window(limit: int, per_version: int) -> int:
    """How many groups may be open or taken at once: those of the version being trained and of `limit` more."""
    return (limit + 1) * per_version


def admits(ahead: int, taken: int, window: int) -> bool:
    """Whether an ordinal may start. Both counts are sizes of sets: nothing that ends early needs a correction."""
    return ahead + taken < window


def due(trained: int, ahead: int, taken: int, per_version: int) -> int:
    """Number of the version that will consume a group with `ahead` open ordinals before it."""
    return trained + (ahead + taken) // per_version


def start_from(trained: int, ahead: int, taken: int, per_version: int, limit: int) -> int:
    """Smallest effective number of a server on which the group may start and still be fresh when it is due.

    A server that is merely within `limit` of head would make groups of lag up to 2 * limit.
    """
    return due(trained, ahead, taken, per_version) - limit


def oldest_allowed(trained: int, limit: int) -> int:
    """The smallest effective number that may still be trained on: lag = trained - effective, and lag <= limit."""
    return trained - limit


def lag(number: int, effective: int) -> int:
    """Versions between the trainer's and the oldest token. Never negative: a server may be ahead of the ledger."""
    return max(0, number - effective)


def stale(effective: Mapping[str, int], number: int, limit: int | None) -> list[str]:
    """The keys whose lag exceeds the limit, sorted. No limit: none."""
    if limit is None:
        return []
    return sorted(key for key, value in effective.items() if value < oldest_allowed(number, limit))


def kept_groups(oldest: Iterable[int], group_ids: Iterable[str], number: int, limit: int) -> list[bool]:
    """Per member, whether its group stays: a group goes whole if any member is stale, or its statistics are of a
    part."""
    rows = list(zip(oldest, group_ids, strict=True))
    gone = {group for value, group in rows if value < oldest_allowed(number, limit)}
    return [group not in gone for _, group in rows]


def last_chance(effective: int, number: int, limit: int) -> bool:
    """Whether the group may be trained on now but not one version later."""
    return effective == oldest_allowed(number, limit)


def must_wait(ready_last: int, in_flight_last: int, count: int, remaining: int) -> bool:
    """Whether a lease of `count` waits for last-chance groups in flight (policy `wait`).

    Args:
        ready_last: last-chance groups that are ready; they are taken first.
        in_flight_last: last-chance groups that a worker holds and has sampled tokens for.
        count: groups the lease wants.
        remaining: groups this version still takes, the wanted ones included.
    Returns:
        True while the batch has room for one of them and the later batches of this version do not hold them all.
    """
    return in_flight_last > 0 and ready_last < count and remaining - count < in_flight_last


def may_train(in_flight: Mapping[str, int], ready: int, number: int, limit: int, count: int) -> bool:
    """Whether a version may be trained under `wait`: enough groups, and none in flight that it would leave behind.

    The rule of verl's buffer, with max_span = limit + 1. It is `must_wait` for a batch that always has room.
    """
    behind = sum(value <= oldest_allowed(number, limit) for value in in_flight.values())
    return ready >= count and not must_wait(0, behind, count, count)


def doomed(effective: int, earliest: int, limit: int) -> bool:
    """Whether a group can no longer be consumed in time; `earliest` is the first version that could take it."""
    return effective < oldest_allowed(earliest, limit)
