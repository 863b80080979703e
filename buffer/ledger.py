"""The transition table: every word of the protocol, the states it leads from and to, and the rule that does it.

            reserve              put                 lease               commit
  (ordinal) -------> in_flight -------> ready -----------> leased -----------> consumed
                       |   ^             |                  |  |
      sweep, release   v   | reserve     v stale            |  v recover, give_back
                      waiting <----------+                  | ready
                       |   ^ <------------------------------+ corrupt payload
                       v                put may also end in filtered or discarded (stale), give_back in filtered
                      dead

The rules are pure: the books and plain values in, an answer out. `memory_store` runs them; the Lua scripts of the
same names do the same in Redis, and the property tests compare the two after every step of random histories.
"""

from buffer import admission, batches, claims, closing, letters
from buffer.books import CLOSED, CONSUMED, DEAD, DISCARDED, FILTERED, IN_FLIGHT, LEASED, READY, STATES, WAITING, Books

TRANSITIONS = {
    "reserve": (admission.reserve, {(None, IN_FLIGHT), (WAITING, IN_FLIGHT)}),
    "renew": (claims.renew, {(IN_FLIGHT, IN_FLIGHT)}),
    "park": (claims.park, {(IN_FLIGHT, IN_FLIGHT)}),
    "put": (claims.put, {(IN_FLIGHT, READY), (IN_FLIGHT, WAITING), (IN_FLIGHT, DISCARDED)}),
    "filter": (claims.filter_group, {(IN_FLIGHT, FILTERED)}),
    "release": (claims.release, {(IN_FLIGHT, WAITING), (IN_FLIGHT, DEAD)}),
    "sweep": (claims.sweep, {(IN_FLIGHT, WAITING), (IN_FLIGHT, DEAD)}),
    "resubmit": (letters.resubmit, {(DEAD, WAITING)}),
    "purge": (letters.purge, set[tuple[str | None, str]]()),
    "lease": (batches.lease, {(READY, LEASED), (READY, WAITING), (READY, DISCARDED)}),
    "give_back": (batches.give_back, {(LEASED, to) for to in (READY, WAITING, DEAD, FILTERED)}),
    "advance": (batches.advance, set[tuple[str | None, str]]()),
    "evaluate": (batches.evaluate, set[tuple[str | None, str]]()),
    "commit": (
        closing.commit,
        {(state, kind) for state in (None, *STATES) for kind in CLOSED} | {(None, WAITING), (None, DEAD)},
    ),
    "recover": (
        closing.recover,
        {(state, kind) for state in (None, *STATES) for kind in CLOSED}
        | {(LEASED, READY), (LEASED, DEAD), (None, WAITING), (None, DEAD)}
        | {(kind, WAITING) for kind in CLOSED},
    ),
}
"""word -> (its rule, the moves (from, to) it may make); None is an ordinal that the books do not know."""


def counts(books: Books) -> dict[str, int]:
    """How many ordinals are in each state, and `next_ordinal`, which is their sum."""
    held = {
        IN_FLIGHT: len(books.in_flight),
        WAITING: len(books.waiting),
        READY: len(books.ready),
        LEASED: len(books.leased),
        DEAD: len(books.dead),
    }
    closed = {kind: books.below[kind] + len(books.closed[kind]) for kind in CLOSED}
    return {**{state: {**held, **closed}[state] for state in STATES}, "next_ordinal": books.next_ordinal}


def state_of(books: Books, ordinal: int) -> str | None:
    """Where an ordinal is; CONSUMED stands for every kind that a commit has counted and forgotten."""
    if ordinal in books.cards:
        return books.cards[ordinal].state
    for kind in CLOSED:
        if ordinal in books.closed[kind]:
            return kind
    return CONSUMED if ordinal < books.watermark else None
