"""What one lineage of the trainer has closed: the part of the books that a checkpoint keeps.

Everything below `watermark` is closed but the ordinals in `dead` and `reopened`; above it, the closed ones are
listed by kind. The ledger of the newest checkpoint outranks Redis: `commit` and `recover` make the books agree with it.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from buffer.books import CLOSED, CONSUMED, DEAD, HELD, WAITING, Books, Card, Spent
from buffer.json_safe import integer, shown
from buffer.tokens import TRAINED

SCHEMA = 1

_NOT_SHOWN = (
    "claims",
    "in_flight",
    "sampling",
    "waiting",
    "ready",
    "taken",
    "dead_kept",
    "trash",
    "commons",
    "draws",
    "pass_rates",
)
"""What of the books an outline leaves empty."""


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
    trained_tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """data source -> (trajectories, sampled tokens) that the lineage has consumed, masked ones included."""
    masked: Mapping[str, int] = field(default_factory=dict)
    """data source -> those of its tokens that were kept out of the loss."""

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
            "trained_tokens": {source: list(spent) for source, spent in self.trained_tokens.items()},
            "masked": dict(self.masked),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ledger":  # plain data of json.load
        """The ledger of a checkpoint.

        Raises:
            ValueError: it was written by another major version, or is no ledger.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != SCHEMA:
            raise ValueError(
                f"the checkpoint's ledger has schema {shown(schema)}, this version reads {SCHEMA}. Resume "
                "with the "
                "version of asyncrl that wrote the checkpoint."
            )
        try:
            ledger = cls(
                branch=_whole(data["branch"]),
                number=_whole(data["number"]),
                watermark=_whole(data["watermark"]),
                closed={kind: _wholes(data["closed"][kind]) for kind in CLOSED},
                below={kind: _whole(data["below"][kind]) for kind in CLOSED},
                dead=_wholes(data["dead"]),
                reopened=_wholes(data["reopened"]),
                forks={int(branch): (_whole(at[0]), _whole(at[1])) for branch, at in data["forks"].items()},
                reasons={str(reason): _whole(count) for reason, count in data["reasons"].items()},
                trained_tokens={str(s): (_whole(n), _whole(t)) for s, (n, t) in data["trained_tokens"].items()},
                masked={str(source): _whole(tokens) for source, tokens in data["masked"].items()},
            )
            ledger._check()
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise ValueError(
                f"the checkpoint's ledger is damaged: {type(error).__name__}: {error}. Resume from the checkpoint "
                "before it."
            ) from error
        return ledger

    def _check(self) -> None:
        named = [*self.dead, *self.reopened, *(o for ordinals in self.closed.values() for o in ordinals)]
        if len(set(named)) < len(named):
            raise ValueError("it names an ordinal twice")
        if any(ordinal < self.watermark for ordinals in self.closed.values() for ordinal in ordinals):
            raise ValueError(f"it lists closed ordinals below its watermark {self.watermark}")
        for branch, (parent, _) in self.forks.items():
            if not 0 <= parent < branch or (parent and parent not in self.forks):
                raise ValueError(f"branch {branch} left branch {parent}, which it does not know")


def _whole(value: object) -> int:
    found = integer("a number of the ledger", value)
    if found < 0:
        raise ValueError(f"{shown(found)} is negative")
    return found


def _wholes(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(map(_whole, values))


def asked_of(base: Ledger, trained: Iterable[int]) -> tuple[int, int, tuple[int, ...]]:
    """What `outline` is to be told for `ledger_of` to find in it all that it looks for."""
    named = {*trained, *(o for ordinals in base.closed.values() for o in ordinals)}
    return base.watermark, len(named) + 1, tuple(sorted({*base.dead, *base.reopened}))


def outline(books: Books, watermark: int, count: int, named: Iterable[int]) -> Books:
    """The books without what is ready or in flight, which are many: all that a checkpoint asks.

    Args:
        watermark, count: of the open ordinals from the watermark on the smallest, so many more than are closed.
        named: further ordinals that are shown if they are open.
    """
    count += sum(map(len, books.closed.values()))
    start = max(watermark, books.watermark)
    shown_open = {*sorted(o for o in books.open if o >= start)[:count], *(o for o in named if o in books.open)}
    cards = {o: Card(WAITING) for o in shown_open} | {o: Card(DEAD) for o in books.dead}
    shown = replace(
        books,
        cards=cards | {o: books.cards[o] for o in books.leased},
        open=shown_open,
        **{name: type(getattr(books, name))() for name in _NOT_SHOWN},
    )
    return deepcopy(shown)


def ledger_of(
    books: Books,
    base: Ledger,
    number: int,
    trained: Iterable[int],
    masked: Mapping[str, int] = MappingProxyType({}),
    leased: Mapping[int, Spent] = MappingProxyType({}),
) -> Ledger:
    """The ledger of a checkpoint at `number`.

    Args:
        books: read under the trainer's branch; the `outline` for `asked_of` of `base` and `trained` is enough.
        base: the lineage's ledger so far: of the last commit, or of the checkpoint it resumed from.
        trained: ordinals trained on since `base`, whatever Redis believes of them.
        masked: data source -> sampled tokens kept out of the loss since `base`.
        leased: the tokens of what this trainer has leased since `base`: Redis may have lost its cards.
    """
    if books.watermark > base.watermark:  # the trainer that committed was another process of this branch
        base = Ledger(
            watermark=books.watermark,
            below=dict(books.below),
            dead=_below(books.watermark, books.dead),
            trained_tokens={s: spent for (fate, s), spent in books.fates.items() if fate == TRAINED},
            masked=dict(books.masked),
        )
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
        trained_tokens=_trained_tokens(books, base, [o for o, kind in kinds.items() if kind == CONSUMED], leased),
        masked={source: base.masked.get(source, 0) + masked.get(source, 0) for source in {**base.masked, **masked}},
    )


def _trained_tokens(
    books: Books, base: Ledger, consumed: Iterable[int], leased: Mapping[int, Spent]
) -> dict[str, tuple[int, int]]:
    tokens = dict(base.trained_tokens)
    for ordinal in consumed:
        if base.names(ordinal):
            continue
        card = books.cards.get(ordinal)
        spent = leased.get(ordinal) or (card.index.spent if card is not None else None)
        if spent is not None:
            have = tokens.get(spent.source, (0, 0))
            tokens[spent.source] = (have[0] + spent.trajectories, have[1] + spent.tokens)
    return tokens


def _below(watermark: int, ordinals: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(o for o in ordinals if o < watermark))
