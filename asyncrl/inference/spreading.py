"""Which requests that wait in the queue of a full server should go to others that have room: arithmetic.

Requests stay where they were sent, for the prefix cache. A server that wakes would stand empty until as many answers
have ended elsewhere as it has rows; with long answers its device would be taken back before.
"""

from collections.abc import Iterable, Iterator, Mapping

from asyncrl.inference.member import Member
from asyncrl.inference.session import Session


def leaving(servers: Iterable[Member], rows: int, sessions: Iterable[Session]) -> Iterator[Session]:
    """Those of `sessions`, in the order in which they asked, to send elsewhere: the newest, which have no row yet.

    Args:
        servers: that may be used by anybody.
        rows: requests that a server decodes at once.
    """
    moved = to_move({server.name: server.num_in_flight for server in servers}, rows)
    for session in reversed(list(sessions)):
        if session.in_flight is None or session.only is not None:
            continue
        name = session.in_flight[0].name
        if moved.get(name, 0) > 0:
            moved[name] -= 1
            yield session


def to_move(in_flight: Mapping[str, int], rows: int) -> dict[str, int]:
    """By server, how many of its requests to send elsewhere: as many as fill the others' rows, off the longest queues.

    Args:
        in_flight: requests at each server that may be used.
        rows: requests that a server decodes at once; those beyond wait, and have no tokens there yet.
    """
    room = sum(max(0, rows - num) for num in in_flight.values())
    waiting = {name: num - rows for name, num in in_flight.items() if num > rows}
    moved = dict.fromkeys(waiting, 0)
    for _ in range(min(room, sum(waiting.values()))):
        longest = max(waiting, key=lambda name: waiting[name] - moved[name])
        moved[longest] += 1
    return {name: num for name, num in moved.items() if num}
