"""A run at a glance, for operators: counts, why admission is closed, claims and their ages, deaths."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from buffer import staleness
from buffer.books import DEAD, IN_FLIGHT, WAITING, Books, Card
from buffer.ledger import counts
from buffer.store import Limits
from buffer.tokens import TokenLedger, tokens_of
from buffer.versions import label, pack


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim of a worker."""

    ordinal: int
    attempt: int
    worker: str
    age_s: float
    """Seconds since it was granted."""
    left_s: float
    """Seconds until it expires, unless it is renewed; negative: it is late and not yet swept."""
    oldest: str | None
    """Label of the oldest version that sampled a token of its group; None: no token yet, as far as was told."""
    num_sampled: int
    """Tokens sampled so far in its group, as far as was told."""


@dataclass(frozen=True, slots=True)
class Status:
    """Read-only, and as of one moment. Ages are by the reader's clock against that of the server."""

    run: str
    counts: Mapping[str, int]
    version: str
    """Label of the trained version: branch.number. 0.0 before a trainer has opened a branch."""
    limit: int
    groups_per_version: int
    window: int
    num_open: int
    """Groups in flight, waiting or ready."""
    num_taken: int
    """Groups leased since the last version was trained, and not given back."""
    closed: tuple[str, ...]
    """Why a reserve would be refused now: stopped, paused, no_trainer, window, bytes, in this order, which is that of
    the check. Empty: admission is open."""
    resident_bytes: int
    """Groups that are ready or leased."""
    promised_bytes: int
    """The largest size of all that is in flight or waiting: it counts against the budget until real sizes are known."""
    max_bytes: int
    dead_bytes: int
    max_dead_bytes: int
    claims: tuple[HeldClaim, ...]
    """Oldest first."""
    deaths: Mapping[str, int]
    """reason -> dead letters."""
    reasons: Mapping[str, int]
    """reason -> how often a group left the happy path for it, or a call was refused."""
    tokens: TokenLedger
    evaluation: str
    """Label of the version whose evaluation is open; empty: none is."""

    @property
    def workers(self) -> dict[str, int]:
        """Worker -> claims that it holds, most first."""
        return dict(Counter(claim.worker for claim in self.claims).most_common())

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data: numbers, strings, lists and maps."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        claims = [asdict(claim) for claim in self.claims]
        return {**plain, "claims": claims, "workers": self.workers, "tokens": self.tokens.to_json()}


@dataclass(frozen=True, slots=True)
class Usage:
    """What may be asked for at any time: unlike a status it costs the same however many groups are ready."""

    resident_bytes: int
    """Groups that are ready or leased."""
    promised_bytes: int
    """The largest size of all that is in flight or waiting."""
    dead_bytes: int
    reasons: Mapping[str, int]
    """reason -> how often a group left the happy path for it, or a call was refused."""
    wasted_by_reason: Mapping[str, float]
    """fate -> its share of all tokens that have ended."""


def usage_of(outline: Books, counts: Mapping[str, int], limits: Limits) -> Usage:
    """The usage by an outline of the books and the counts of the states."""
    return Usage(
        resident_bytes=outline.resident_bytes,
        promised_bytes=(counts[IN_FLIGHT] + counts[WAITING]) * limits.max_group_bytes,
        dead_bytes=outline.dead_bytes,
        reasons=dict(sorted(outline.reasons.items())),
        wasted_by_reason=tokens_of(outline).wasted_by_reason(),
    )


def status_of(run: str, books: Books, limits: Limits, now_ms: int) -> Status:
    """The status of the books as they are."""
    return Status(
        run=run,
        counts=counts(books),
        version=label(pack(books.branch, books.trained)),
        limit=books.limit,
        groups_per_version=books.per_version,
        window=books.window,
        num_open=len(books.open),
        num_taken=len(books.taken),
        closed=closed_by(books, limits),
        resident_bytes=books.resident_bytes,
        promised_bytes=books.charged_bytes(limits.max_group_bytes) - books.resident_bytes,
        max_bytes=limits.max_bytes,
        dead_bytes=books.dead_bytes,
        max_dead_bytes=limits.max_dead_bytes,
        claims=tuple(sorted(_claims(books, now_ms), key=lambda claim: (-claim.age_s, claim.ordinal))),
        deaths=dict(Counter(card.reason for card in books.cards.values() if card.state == DEAD).most_common()),
        reasons=dict(sorted(books.reasons.items())),
        tokens=tokens_of(books),
        evaluation=books.evaluation,
    )


def closed_by(books: Books, limits: Limits) -> tuple[str, ...]:
    """Every reason for which the next reserve would be refused, in the order in which `admission` checks them."""
    new = not books.waiting
    ordinal = books.next_ordinal if new else min(books.waiting)
    shut = not staleness.admits(books.ahead(ordinal), len(books.taken), books.window)
    full = books.charged_bytes(limits.max_group_bytes) + limits.max_group_bytes > limits.max_bytes
    found = {
        "stopped": books.stopped,
        "paused": books.paused,
        "no_trainer": books.branch == 0,
        "window": books.branch > 0 and (shut or (new and 0 < books.end <= ordinal)),
        "bytes": new and full,
    }
    return tuple(reason for reason, closed in found.items() if closed)


def _claims(books: Books, now_ms: int) -> list[HeldClaim]:
    held = [(o, books.cards[o]) for o, card in books.cards.items() if card.state == IN_FLIGHT]
    return [
        HeldClaim(
            ordinal=ordinal,
            attempt=card.attempt,
            worker=card.worker,
            age_s=max(0, now_ms - card.since_ms) / 1000,
            left_s=(books.in_flight[ordinal] - now_ms) / 1000,
            oldest=_label(card),
            num_sampled=card.num_sampled,
        )
        for ordinal, card in held
    ]


def _label(card: Card) -> str | None:
    return None if card.oldest is None else label(pack(*card.oldest))
