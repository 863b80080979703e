"""The transitions of operators on dead letters, as pure rules on the books: resubmit and purge.

These are the reference for the scripts of the same names.
"""

from collections.abc import Sequence

from buffer.books import Books


def resubmit(books: Books, ordinals: Sequence[int]) -> tuple[int, ...]:
    """dead -> waiting, as if nothing had gone wrong yet. Answers which were dead."""
    found = tuple(o for o in ordinals if o in books.dead)
    for ordinal in found:
        card = books.cards[ordinal]
        books.wait(ordinal, card)
        card.failures = card.stales = card.excused = card.poison = 0
        card.token = card.reason = card.error = ""
        books.count_reason("resubmitted")
    if found:
        books.hints.append("room")
    return found


def purge(books: Books, ordinals: Sequence[int]) -> tuple[int, ...]:
    """Drop the payloads of dead letters; what is known of the deaths stays. Answers whose were dropped."""
    found = tuple(o for o in ordinals if o in books.dead_kept)
    for ordinal in found:
        card = books.cards[ordinal]
        del books.dead_kept[ordinal]
        books.dead_bytes -= card.index.num_bytes
        books.resident_bytes += card.index.num_bytes
        books.discard_payload(card)
    return found
