"""The transitions that make the books agree with a checkpoint, as pure rules on the books: commit and recover.

These are the reference for the scripts of the same names.
"""

from buffer.batches import fence
from buffer.books import (
    CLOSED,
    CONSUMED,
    DEAD,
    DISCARDED,
    FILTERED,
    LEASED,
    READY,
    TRAINED_STEP,
    WAITING,
    Books,
    Card,
    Spent,
)
from buffer.lineage import Ledger
from buffer.store import Done, Limits
from buffer.tokens import TRAINED
from buffer.versions import fork_point

_FATE_OF = {CONSUMED: TRAINED, FILTERED: "filtered/closed_before", DISCARDED: "stale/discarded"}

MAX_POISON = 3
"""Trainers that may die with a group in their newest batch, before the group dies instead."""


def commit(books: Books, now: int, branch: int, nonce: str, ledger: Ledger) -> Done:
    """Whatever the checkpoint names -> its kind, in whatever state it is. The watermark moves here only."""
    status = fence(books, branch, nonce)
    if status == "ok" and ledger.watermark >= books.watermark:
        _close_named(books, ledger)
        _align_tokens(books, ledger)
        _fill_gaps(books, now, ledger)
        _move_watermark(books, ledger)
        books.hints.append("room")
    return Done(status, books.branch, books.trained)


def recover(
    books: Books,
    now: int,
    nonce: str,
    ledger: Ledger,
    number: int,
    limit: int,
    per_version: int,
    window: int,
    seen: int,
    end: int,
    limits: Limits,
) -> Done:
    """A new branch that starts from the checkpoint's version. The same nonce again: the same branch.

    Named -> its kind; other leased -> ready; consumed but not named, or of forgotten kind -> waiting; counters from the
    ledger. Filtered and discarded ones that it does not name stay what they are: nobody trained on them.
    """
    if nonce == books.nonce:
        return Done("ok", books.branch, books.trained)
    evaluation = books.evaluation
    _open_branch(books, ledger, seen)
    books.nonce, books.trained, books.evaluation, books.stopped = nonce, number, "", False
    books.limit, books.per_version, books.window, books.end = limit, per_version, window, end
    books.taken.clear()
    books.hold_step, books.hold_since_ms = -1, 0
    _close_named(books, ledger)
    _align_tokens(books, ledger)
    _return_leased(books, now, limits)
    exempt = {*ledger.dead, *ledger.reopened}
    named = set(ledger.closed[CONSUMED])
    undone = {o for o in books.closed[CONSUMED] - named if o >= ledger.watermark or o in exempt}
    books.closed[CONSUMED] -= undone
    for ordinal in sorted({*undone, *range(ledger.watermark, books.watermark)}):
        _reopen(books, ordinal)
    _fill_gaps(books, now, ledger)
    _move_watermark(books, ledger)
    _rescore(books)
    for reason, count in ledger.reasons.items():
        books.reasons[reason] = max(count, books.reasons.get(reason, 0))
    books.hints.append("room")
    return Done("ok", books.branch, books.trained, evaluation=evaluation)


def _close_named(books: Books, ledger: Ledger) -> None:
    kinds = {o: kind for kind in CLOSED for o in ledger.closed[kind]}
    exempt = {*ledger.dead, *ledger.reopened}
    for ordinal in sorted(books.cards):
        kind = kinds.get(ordinal) or (CONSUMED if ordinal < ledger.watermark and ordinal not in exempt else None)
        if kind is not None:
            card = books.cards[ordinal]
            if card.state in (READY, LEASED):
                books.spend(_FATE_OF[kind], card.index.spent)
            books.spend("failed/closed_before", card.parked.spent)
            books.close(ordinal, card, kind)
    for ordinal, kind in kinds.items():
        for other in CLOSED:
            books.closed[other].discard(ordinal)
        books.closed[kind].add(ordinal)


def _align_tokens(books: Books, ledger: Ledger) -> None:
    """What the lineage has trained is what its ledger says: more was trained on a branch that is given up, less was
    lost by Redis."""
    sources = {source for fate, source in books.fates if fate == TRAINED} | set(ledger.trained_tokens)
    for source in sorted(sources):
        have, want = books.fates.get((TRAINED, source), (0, 0)), ledger.trained_tokens.get(source, (0, 0))
        more = Spent(source, have[0] - want[0], have[1] - want[1])
        if more.tokens > 0:
            books.spend("rolled_back", more)
        else:
            books.sampled -= more.tokens
        books.fates[TRAINED, source] = want
    books.masked = dict(ledger.masked)


def _fill_gaps(books: Books, now: int, ledger: Ledger) -> None:
    """Ordinals that only the ledger knows of: Redis lost them, so those that are not closed start again."""
    known = max(books.next_ordinal, ledger.watermark)
    books.next_ordinal = max(known, ledger.num_named)
    for ordinal in ledger.dead:
        _reopen(books, ordinal, dead_since=now)
    for ordinal in sorted({*range(known, books.next_ordinal), *ledger.reopened}):
        _reopen(books, ordinal)


def _reopen(books: Books, ordinal: int, *, dead_since: int | None = None) -> None:
    """-> waiting, or -> dead, unless the books have it somewhere."""
    if ordinal in books.cards or any(ordinal in books.closed[kind] for kind in CLOSED):
        return
    if dead_since is None:
        books.cards[ordinal] = Card(WAITING)
        books.waiting.add(ordinal)
        books.open.add(ordinal)
    else:
        books.cards[ordinal] = Card(DEAD, reason="forgotten")
        books.dead[ordinal] = dead_since


def _move_watermark(books: Books, ledger: Ledger) -> None:
    """Closed ones below it are counted by the ledger, except those that it still calls dead or reopened."""
    books.watermark = ledger.watermark
    exempt = {*ledger.dead, *ledger.reopened}
    for kind in CLOSED:
        late = {o for o in books.closed[kind] if o < ledger.watermark}
        books.closed[kind] -= late
        books.below[kind] = ledger.below[kind] + len(late & exempt)


def _open_branch(books: Books, ledger: Ledger, seen: int) -> None:
    """The next branch of the tree, and for every older one the deepest number it has in common with it."""
    books.forks.update(ledger.forks)
    books.branch = max(books.branch, ledger.branch, seen, *books.forks, 0) + 1
    books.forks[books.branch] = (ledger.branch, ledger.number)
    books.commons = {branch: fork_point(books.forks, branch, books.branch) for branch in (0, *books.forks)}
    del books.commons[books.branch]


def _return_leased(books: Books, now: int, limits: Limits) -> None:
    """Leased ones -> ready. Those of the newest batch were in the trainer's hands when it died."""
    newest = max(books.leased.values(), default=TRAINED_STEP)
    for ordinal, step in sorted(books.leased.items()):
        card = books.cards[ordinal]
        card.poison += step == newest != TRAINED_STEP
        if card.poison >= MAX_POISON:
            books.count_reason("trainer_poison")
            books.spend("failed/trainer_poison", card.index.spent)
            error = f"{MAX_POISON} trainers died with it in the batch of their newest step, the last one at step {step}"
            books.die(ordinal, card, "trainer_poison", error, now, limits.max_dead_bytes)
        else:
            books.make_ready(ordinal, card)


def _rescore(books: Books) -> None:
    for ordinal in books.ready:
        books.ready[ordinal] = books.oldest_effective(books.cards[ordinal].index.ranges)
    for ordinal in books.sampling:
        oldest = books.cards[ordinal].oldest
        assert oldest is not None, f"ordinal {ordinal} is sampled from no version"
        books.sampling[ordinal] = books.effective(*oldest)
