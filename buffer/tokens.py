"""The token ledger: every sampled token that came in is still held or has ended in one way.

    trained               in the loss of a version that survives
    masked                trained with, but kept out of the loss
    filtered/<reason>     its group had no learning signal
    stale/resubmitted     its group was past the limit, the prompt is played again
    stale/discarded       the same, and the prompt is not
    stale/partials        parked, and past the limit before anybody went on from it
    failed/<reason>       worker_lost, abandoned, corrupt_payload, fenced, too_large, ...
    rolled_back           trained on a branch that was given up for an older checkpoint
    evaluated             of a held-out prompt

Tokens of a worker that is killed are those that it reported at its last renewal, so their number is a lower bound.
What Redis loses with its tail is in none of these, unless the lineage trained on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buffer.books import LEASED, READY, Books, Fate, Spent

TRAINED, MASKED, EVALUATED = "trained", "masked", "evaluated"
_USED = (TRAINED, EVALUATED)


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """sampled: tokens that came in. held: those still in the buffer. fates: (fate, data source) -> what ended so."""

    sampled: int
    held: int
    fates: Mapping[Fate, Spent]

    def problems(self) -> list[str]:
        """Why the accounts do not balance; none if they do."""
        ended = sum(spent.tokens for spent in self.fates.values())
        problems = [
            f"{spent.tokens} tokens of {source!r} are {fate}: more were masked than trained on"
            for (fate, source), spent in self.fates.items()
            if spent.tokens < 0
        ]
        if self.sampled != self.held + ended:
            problems.append(f"{self.sampled} tokens were sampled, but {self.held} are held and {ended} have ended")
        return problems

    @property
    def wasted_share(self) -> float:
        """Tokens that ended neither trained nor evaluated, as a share of all that have ended."""
        return sum(self.wasted_by_reason().values())

    def wasted_by_reason(self) -> dict[str, float]:
        """fate -> its share of all tokens that have ended; the useful ones are left out."""
        ended = sum(spent.tokens for spent in self.fates.values())
        wasted: dict[str, int] = {}
        for (fate, _), spent in self.fates.items():
            if fate not in _USED and spent.tokens:
                wasted[fate] = wasted.get(fate, 0) + spent.tokens
        return {fate: tokens / ended for fate, tokens in sorted(wasted.items())} if ended else {}

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data: numbers, strings and maps; `fates` is fate -> data source -> trajectories and tokens."""
        fates: dict[str, dict[str, dict[str, int]]] = {}
        for (fate, source), spent in sorted(self.fates.items()):
            fates.setdefault(fate, {})[source] = {"trajectories": spent.trajectories, "tokens": spent.tokens}
        return {
            "sampled": self.sampled,
            "held": self.held,
            "fates": fates,
            "wasted_share": self.wasted_share,
            "wasted_by_reason": self.wasted_by_reason(),
        }


def tokens_of(books: Books) -> TokenLedger:
    """The token ledger of the books as they are."""
    fates = {key: Spent(key[1], *spent) for key, spent in books.fates.items() if spent != (0, 0)}
    for source, masked in books.masked.items():
        if masked:
            trained = fates.get((TRAINED, source), Spent(source))
            fates[TRAINED, source] = Spent(source, trained.trajectories, trained.tokens - masked)
            fates[MASKED, source] = Spent(source, 0, masked)
    evaluated = 0
    for (_, source), (trajectories, tokens) in books.evaluated.items():
        have = fates.get((EVALUATED, source), Spent(source))
        fates[EVALUATED, source] = Spent(source, have.trajectories + trajectories, have.tokens + tokens)
        evaluated += tokens
    held = sum(card.parked.spent.tokens for card in books.cards.values())
    held += sum(card.index.spent.tokens for card in books.cards.values() if card.state in (READY, LEASED))
    return TokenLedger(books.sampled + evaluated, held, fates)


def all_spent(books: Books) -> tuple[Spent, ...]:
    """All tokens of an evaluation's books by data source, whatever became of them."""
    total: dict[str, tuple[int, int]] = {}
    held = [card.index.spent for card in books.cards.values() if card.state in (READY, LEASED)]
    ended = [Spent(source, *spent) for (_, source), spent in books.fates.items()]
    for spent in (*held, *ended):
        have = total.get(spent.source, (0, 0))
        total[spent.source] = (have[0] + spent.trajectories, have[1] + spent.tokens)
    return tuple(Spent(source, *spent) for source, spent in sorted(total.items()) if spent != (0, 0))
