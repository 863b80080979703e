"""The transition that admits work, as a pure rule on the books: reserve.

This is the reference for the script of the same name: plain and slow, checked before the first change.
"""

from collections.abc import Sequence

from buffer.books import IN_FLIGHT, Books, Card
from buffer.claims import count_if_alive, is_late
from buffer.draws import Draw, first_open
from buffer.staleness import admits
from buffer.store import Granted, Limits, Refused

DRAW = "draw"
"""Why a reserve is refused whose offered draws others have passed: see `buffer.draws`."""


def reserve(
    books: Books, now: int, token: str, worker: str, limits: Limits, offered: Sequence[Draw] = ()
) -> Granted | Refused:
    """The smallest waiting ordinal, else a new one -> in_flight, if the window and (for a new one) the bytes allow.

    offered: draws for it, if none is recorded: that of a new ordinal, or one that Redis has lost.
    """
    known = books.claims.get(token)
    if known is not None:  # the reply to the first call was lost
        return _granted(books, known, books.cards[known])
    new = not books.waiting
    ordinal = books.next_ordinal if new else min(books.waiting)
    ahead = books.ahead(ordinal)
    charged = books.charged_bytes(limits.max_group_bytes)
    reason = _refusal(books, ordinal, new, ahead, charged + limits.max_group_bytes > limits.max_bytes)
    floor, draw = max(books.next_position, books.next_ordinal), books.draws.get(ordinal)
    if not reason and offered and draw is None:
        draw = first_open(offered, floor)
        reason = "" if draw is not None else DRAW
    if reason:
        if reason != DRAW:  # the same worker asks again at once
            count_if_alive(books, f"denied_{reason}")
        return Refused(reason, ahead, len(books.taken), books.window, charged, "", floor)
    if draw is not None and ordinal not in books.draws:
        books.draws[ordinal], books.next_position = draw, draw.position + 1
        books.draws.pop(ordinal - limits.max_draws, None)
    if new:
        books.next_ordinal += 1
        card = books.cards[ordinal] = Card(IN_FLIGHT)
    else:
        card = books.cards[ordinal]
        books.leave(ordinal, card)
        if card.parked_key and is_late(books, card.parked) and limits.on_stale != "mask":
            # Continued, it would be stale whenever it came in.
            books.count_reason("stale_partials")
            books.spend("stale/partials", card.parked.spent)
            books.discard_parked(card)
    card.state, card.attempt, card.token, card.worker = IN_FLIGHT, card.attempt + 1, token, worker
    card.since_ms, card.reason, card.error = now, "", ""
    books.in_flight[ordinal] = now + limits.claim_ms
    books.claims[token] = ordinal
    books.open.add(ordinal)
    return _granted(books, ordinal, card)


def _refusal(books: Books, ordinal: int, new: bool, ahead: int, full: bool) -> str:
    if books.stopped:
        return "stopped"
    if books.paused:
        return "paused"
    if books.branch == 0:
        return "no_trainer"
    if not admits(ahead, len(books.taken), books.window) or (new and books.end and ordinal >= books.end):
        return "window"
    # A waiting ordinal has been charged since its first reserve: refusing it would lock what the trainer needs out.
    return "bytes" if new and full else ""


def _granted(books: Books, ordinal: int, card: Card) -> Granted:
    ahead = books.ahead(ordinal)
    return Granted(
        ordinal,
        card.attempt,
        ahead,
        len(books.taken),
        books.branch,
        books.trained,
        books.limit,
        books.per_version,
        dict(books.commons),
        card.parked_key,
        card.parked,
        books.draws.get(ordinal),
    )
