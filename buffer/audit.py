"""The audit: the accounting identity, and every set of the books against every card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buffer import wire
from buffer.books import CLOSED, DEAD, IN_FLIGHT, LEASED, OPEN, READY, STATES, WAITING, Books, Index
from buffer.errors import BufferError
from buffer.ledger import counts
from buffer.payloads import Blob, Payloads
from buffer.tokens import TokenLedger, tokens_of


@dataclass(frozen=True, slots=True)
class Audit:
    """ok: there is no problem. identity: counts by state, and next_ordinal, which is their sum."""

    ok: bool
    identity: Mapping[str, int]
    by_reason: Mapping[str, int]
    problems: list[str]
    branch: int
    trained: int
    resident_bytes: int
    tokens: TokenLedger
    dead: tuple[Mapping[str, Any], ...]
    """The dead letters: ordinal, attempt, reason, error, whether the payload is still there."""

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data: numbers, strings, lists and maps."""
        return {
            "ok": self.ok,
            "identity": dict(self.identity),
            "by_reason": dict(self.by_reason),
            "problems": list(self.problems),
            "branch": self.branch,
            "trained": self.trained,
            "resident_bytes": self.resident_bytes,
            "tokens": self.tokens.to_json(),
            "dead": [dict(letter) for letter in self.dead],
        }


def audit_of(run: str, books: Books, payloads: Payloads | None) -> Audit:
    """Audit the books as they are; with `payloads`, read and check each of them."""
    identity = counts(books)
    tokens = tokens_of(books)
    problems = [
        *_identity(identity),
        *_sets(books),
        *_bytes(books),
        *_closed(books),
        *_draws(books),
        *tokens.problems(),
    ]
    if payloads is not None:
        problems += _payloads(books, payloads)
    return Audit(
        ok=not problems,
        identity=identity,
        by_reason=dict(sorted(books.reasons.items())),
        problems=[f"run {run!r}: {problem}" for problem in problems],
        branch=books.branch,
        trained=books.trained,
        resident_bytes=books.resident_bytes,
        tokens=tokens,
        dead=tuple(
            {
                "ordinal": ordinal,
                "attempt": books.cards[ordinal].attempt,
                "reason": books.cards[ordinal].reason,
                "error": books.cards[ordinal].error,
                "payload": ordinal in books.dead_kept,
            }
            for ordinal in sorted(books.dead)
            if ordinal in books.cards
        ),
    )


def _identity(identity: Mapping[str, int]) -> list[str]:
    total = sum(identity[state] for state in STATES)
    if total == identity["next_ordinal"]:
        return []
    parts = " + ".join(f"{identity[state]} {state}" for state in STATES)
    return [f"next_ordinal = {identity['next_ordinal']}, but {parts} = {total}"]


def _sets(books: Books) -> list[str]:
    by_state = {
        IN_FLIGHT: set(books.in_flight),
        WAITING: set(books.waiting),
        READY: set(books.ready),
        LEASED: set(books.leased),
        DEAD: set(books.dead),
    }
    problems = []
    for state, ordinals in by_state.items():
        cards = {ordinal for ordinal, card in books.cards.items() if card.state == state}
        problems += [f"ordinal {o} is in {state}, its card says otherwise" for o in sorted(ordinals - cards)]
        problems += [f"ordinal {o} is {state} by its card, but not in that set" for o in sorted(cards - ordinals)]
    if books.open != set().union(*(by_state[state] for state in OPEN)):
        problems.append("`open` is not the union of in_flight, waiting and ready")
    if set(books.claims.values()) != by_state[IN_FLIGHT] or len(books.claims) != len(by_state[IN_FLIGHT]):
        problems.append("there is not one token for each ordinal in flight")
    if not set(books.sampling) <= by_state[IN_FLIGHT] or not set(books.dead_kept) <= by_state[DEAD]:
        problems.append("sampling or dead_kept names an ordinal of another state")
    problems += [
        f"ordinal {o} is {card.state}, but unfinished episodes are parked for it"
        for o, card in books.cards.items()
        if card.parked_key and card.state not in (IN_FLIGHT, WAITING)
    ]
    problems += [
        f"the index of ordinal {o} is damaged: its group will be made again"
        for o, card in books.cards.items()
        if card.key and card.index.is_damaged
    ]
    problems += [
        f"ordinal {o} is {card.state} without a payload"
        for o, card in books.cards.items()
        if card.state in (READY, LEASED) and not card.key
    ]
    return problems


def _bytes(books: Books) -> list[str]:
    resident = sum(card.index.num_bytes for card in books.cards.values() if card.state in (READY, LEASED))
    dead = sum(books.cards[o].index.num_bytes for o in books.dead_kept if o in books.cards)
    return [
        f"{name} = {found}, the cards add up to {expected}"
        for name, found, expected in (
            ("resident_bytes", books.resident_bytes, resident),
            ("dead_bytes", books.dead_bytes, dead),
        )
        if found != expected
    ]


def _closed(books: Books) -> list[str]:
    problems = []
    for kind in CLOSED:
        both = books.closed[kind] & books.cards.keys()
        problems += [f"ordinal {o} is {kind} and has a card" for o in sorted(both)]
    seen: set[int] = set()
    for kind in CLOSED:
        problems += [f"ordinal {o} is closed in two ways" for o in sorted(seen & books.closed[kind])]
        seen |= books.closed[kind]
    beyond = [o for o in (*books.cards, *seen) if o >= books.next_ordinal]
    problems += [f"ordinal {o} is not below next_ordinal = {books.next_ordinal}" for o in sorted(beyond)]
    return problems


def _draws(books: Books) -> list[str]:
    problems, at = [], dict[int, int]()
    for ordinal, draw in sorted(books.draws.items()):
        if draw.position in at:
            problems.append(f"ordinals {at[draw.position]} and {ordinal} were both drawn at position {draw.position}")
        if draw.position >= books.next_position:
            problems.append(f"ordinal {ordinal} was drawn at {draw.position}, not below {books.next_position}")
        at[draw.position] = ordinal
    return problems


def _payloads(books: Books, payloads: Payloads) -> list[str]:
    problems = []
    for ordinal, card in sorted(books.cards.items()):
        for what, key, index in (("payload", card.key, card.index), ("parked payload", card.parked_key, card.parked)):
            if key and (problem := _payload(payloads.get(key, index.num_bytes), index)):
                problems.append(f"the {what} of ordinal {ordinal} {problem}")
    return problems


def _payload(blob: Blob | None, index: Index) -> str:
    if blob is None:
        return "is gone: it will be made again"
    try:
        found = wire.xxh3(wire.inflate(blob, max_bytes=1 << 32))
    except BufferError as error:
        return f"is damaged: {error}"
    return "" if found == index.xxh3 else f"has xxh3 {found}, its index says {index.xxh3}"
