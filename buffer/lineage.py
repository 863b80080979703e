"""What one lineage of the trainer has closed: the part of the books that a checkpoint keeps.

Everything below `watermark` is closed but the ordinals in `dead` and `reopened`; above it, the closed ones are
listed by kind. The ledger of the newest checkpoint outranks Redis: `commit` and `recover` make the books agree with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buffer.books import CLOSED, CONSUMED, DEAD, HELD, Books

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Ledger:
    """JSON-able through to_json() and from_json()."""

    branch: int = 0
    number: int = 0
    watermark: int = 0
    closed: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict.fromkeys(CLOSED, ()))
    """kind -> ordinals at or above the watermark."""
    below: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(CLOSED, 0))
    """kind -> how many are below the watermark."""
    dead: tuple[int, ...] = ()
    reopened: tuple[int, ...] = ()
    """Ordinals below the watermark that were dead and have been resubmitted since."""
    forks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_named(self) -> int:
        """One more than the largest ordinal that the ledger says anything about."""
        return max((o + 1 for ordinals in (*self.closed.values(), self.dead) for o in ordinals), default=0)

    def names(self, ordinal: int) -> bool:
        """Whether the lineage has closed this ordinal."""
        if ordinal < self.watermark:
            return ordinal not in self.dead and ordinal not in self.reopened
        return any(ordinal in ordinals for ordinals in self.closed.values())

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data: numbers, strings, lists and maps with string keys."""
        return {
            "schema": SCHEMA,
            "branch": self.branch,
            "number": self.number,
            "watermark": self.watermark,
            "closed": {kind: list(ordinals) for kind, ordinals in self.closed.items()},
            "below": dict(self.below),
            "dead": list(self.dead),
            "reopened": list(self.reopened),
            "forks": {str(branch): list(fork) for branch, fork in self.forks.items()},
            "reasons": dict(self.reasons),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ledger":  # plain data of json.load
        """The ledger of a checkpoint.

        Raises:
            ValueError: it was written by another major version, or is no ledger.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"the checkpoint's ledger has schema {data.get('schema')!r}, this version reads {SCHEMA}. Resume "
                "with the "
                "version of asyncrl that wrote the checkpoint."
            )
        return cls(
            branch=int(data["branch"]),
            number=int(data["number"]),
            watermark=int(data["watermark"]),
            closed={kind: tuple(map(int, data["closed"][kind])) for kind in CLOSED},
            below={kind: int(data["below"][kind]) for kind in CLOSED},
            dead=tuple(map(int, data["dead"])),
            reopened=tuple(map(int, data["reopened"])),
            forks={int(branch): (int(parent), int(number)) for branch, (parent, number) in data["forks"].items()},
            reasons={str(reason): int(count) for reason, count in data["reasons"].items()},
        )


def ledger_of(books: Books, base: Ledger, number: int, trained: Iterable[int]) -> Ledger:
    """The ledger of a checkpoint at `number`.

    Args:
        books: read under the trainer's branch.
        base: the lineage's ledger so far: of the last commit, or of the checkpoint it resumed from.
        trained: ordinals trained on since `base`, whatever Redis believes of them.
    """
    if books.watermark > base.watermark:  # the trainer that committed was another process of this branch
        base = Ledger(watermark=books.watermark, below=dict(books.below), dead=_below(books.watermark, books.dead))
    exempt = {*base.dead, *base.reopened}
    kinds = {o: kind for source in (books.closed, base.closed) for kind in CLOSED for o in source[kind]}
    kinds.update(dict.fromkeys(trained, CONSUMED))
    dead = {o for o in books.dead if o >= base.watermark or o in exempt}
    dead |= {o for o in base.dead if o not in books.cards}
    dead -= kinds.keys()
    # Redis may have lost its tail: then it believes ordinals open that the lineage has closed, and knows the newest
    # not at all.
    held = {o for o, card in books.cards.items() if card.state in HELD and card.state != DEAD}
    top = max([books.next_ordinal, *(o + 1 for o in kinds), base.watermark, *(o + 1 for o in dead)])
    held.update(o for o in range(max(books.next_ordinal, base.watermark), top))
    still_open = {o for o in held if o not in kinds and o not in dead and (o >= base.watermark or o in exempt)}
    still_open |= {o for o in base.reopened if o not in books.cards and o not in kinds}
    watermark = min((o for o in still_open if o >= base.watermark), default=top)
    fresh = {o: kind for o, kind in kinds.items() if o >= base.watermark or o in exempt}
    return Ledger(
        branch=books.branch,
        number=number,
        watermark=watermark,
        closed={kind: tuple(sorted(o for o, k in fresh.items() if k == kind and o >= watermark)) for kind in CLOSED},
        below={kind: base.below[kind] + sum(k == kind and o < watermark for o, k in fresh.items()) for kind in CLOSED},
        dead=tuple(sorted(dead)),
        reopened=tuple(sorted(o for o in still_open if o < watermark)),
        forks=dict(books.forks),
        reasons=dict(books.reasons),
    )


def _below(watermark: int, ordinals: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(o for o in ordinals if o < watermark))
