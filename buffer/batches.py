"""The transitions of the trainer between two checkpoints, as pure rules on the books: lease, give_back, advance.

These are the reference for the scripts of the same names. Each begins with the fence: one branch has one trainer.
"""

from collections.abc import Sequence

from buffer.books import FILTERED, LEASED, READY, TRAINED_STEP, WAITING, Books, Spent
from buffer.claims import drop_stale, fail
from buffer.staleness import must_wait
from buffer.store import Batch, Done, Left, Limits, Taken


def fence(books: Books, branch: int, nonce: str) -> str:
    """ok; fenced: a newer branch has taken over; behind: the books have never heard of this branch.

    A recover that Redis lost with its tail is made again by somebody else, under the same number and another nonce.
    "" is a caller that did not open its branch itself.
    """
    if branch == books.branch:
        return "ok" if nonce in ("", books.nonce) else "fenced"
    return "fenced" if branch < books.branch else "behind"


def lease(
    books: Books,
    now: int,
    branch: int,
    nonce: str,
    number: int,
    step: int,
    count: int,
    oldest_allowed: int,
    wait_ms: int,
    limits: Limits,
) -> Batch:
    """`count` ready groups -> leased for (branch, step), all or none. The same step again: the same groups.

    A repeat after some were given back takes others in their place. wait_ms > 0: policy `wait`, for so long.
    """
    status = fence(books, branch, nonce)
    if status == "ok" and number < books.trained:
        status = "fenced"
    if status != "ok":
        return Batch(status, books.branch, books.trained, now)
    _move_to(books, number)
    left = _drop_stale(books, oldest_allowed, limits)
    have = sorted(o for o, at in books.leased.items() if at == step)
    want = count - len(have)
    chosen = _choose(books, want, limits.order)
    status = "short" if len(chosen) < want else "ok"
    held_by: list[int] = []
    if status == "ok" and want > 0 and limits.order == "oldest":
        held_by = _held_by(books, want, oldest_allowed)
        if held_by and _may_hold(books, now, step, wait_ms):
            status = "held"
    if left:
        books.hints.append("room")
    if status == "ok":
        for ordinal in chosen:
            books.hold(ordinal, books.cards[ordinal], step)
            books.taken.add(ordinal)
        have = sorted({*have, *chosen})
    return _answer(
        books, now, status, have if status == "ok" else [], left, held_by if status == "held" else [], limits
    )


def _move_to(books: Books, number: int) -> None:
    if number > books.trained:
        books.trained = number
        books.taken.clear()
        books.hints.append("room")


def _drop_stale(books: Books, oldest_allowed: int, limits: Limits) -> list[Left]:
    if limits.on_stale == "mask":
        return []
    left = []
    for ordinal in sorted(
        (o for o, at in books.ready.items() if at < oldest_allowed), key=lambda o: (books.ready[o], o)
    ):
        card, effective = books.cards[ordinal], books.ready[ordinal]
        attempt, index = card.attempt, card.index
        left.append(Left(ordinal, attempt, effective, drop_stale(books, ordinal, card, limits), index))
    return left


def _choose(books: Books, want: int, order: str) -> list[int]:
    if order == "oldest":
        return sorted(books.ready, key=lambda o: (books.ready[o], o))[: max(want, 0)]
    first = sorted(books.open)[: max(want, 0)]
    return first if all(books.cards[o].state == READY for o in first) else []


def _held_by(books: Books, want: int, oldest_allowed: int) -> list[int]:
    ready_last = sum(at == oldest_allowed for at in books.ready.values())
    flying = sorted(o for o, at in books.sampling.items() if at == oldest_allowed)
    remaining = max(books.per_version - len(books.taken), want)
    return flying if must_wait(ready_last, len(flying), want, remaining) else []


def _may_hold(books: Books, now: int, step: int, wait_ms: int) -> bool:
    if books.hold_step != step or now < books.hold_since_ms:  # a clock that went back must not lengthen the wait
        books.hold_step, books.hold_since_ms = step, now
    return now - books.hold_since_ms < wait_ms


def _answer(
    books: Books, now: int, status: str, have: Sequence[int], left: list[Left], held_by: list[int], limits: Limits
) -> Batch:
    charged = books.charged_bytes(limits.max_group_bytes)
    open_new = not books.waiting and len(books.open) + len(books.taken) < books.window
    return Batch(
        status,
        books.branch,
        books.trained,
        now,
        tuple(Taken(o, books.oldest_effective(books.cards[o].index.ranges), books.cards[o]) for o in have),
        tuple(left),
        tuple((o, max(0, now - books.cards[o].since_ms), books.cards[o].worker) for o in held_by),
        len(books.ready),
        len(books.in_flight),
        len(books.waiting),
        open_new and charged + limits.max_group_bytes > limits.max_bytes,
    )


def give_back(
    books: Books, now: int, branch: int, nonce: str, ordinals: Sequence[int], reason: str, limits: Limits
) -> Done:
    """leased -> ready (no reason), waiting or dead (corrupt_payload), or filtered; those not leased are left alone.

    `trained`: the lineage has trained it, so it stays leased, at no step, until the next commit closes it.
    """
    status = fence(books, branch, nonce)
    if status == "ok":
        for ordinal in ordinals:
            card = books.cards.get(ordinal)
            if card is None or card.state != LEASED:
                continue
            books.taken.discard(ordinal)
            if reason == "":
                books.make_ready(ordinal, card)
            elif reason == "trained":
                books.leased[ordinal] = TRAINED_STEP
            elif reason == "corrupt_payload":
                books.count_reason(reason)
                books.spend(f"failed/{reason}", card.index.spent)
                if fail(books, now, ordinal, card, reason, "its payload was missing or damaged", limits) == WAITING:
                    card.token = ""
            else:
                books.count_reason(reason)
                books.spend(f"filtered/{reason}", card.index.spent)
                books.close(ordinal, card, FILTERED)
        books.hints.append("room")
    return Done(status, books.branch, books.trained)


def advance(books: Books, branch: int, nonce: str, number: int, limit: int, per_version: int, window: int) -> Done:
    """The trained version, published or not, and the window that goes with it. It never goes back."""
    status = fence(books, branch, nonce)
    if status == "ok" and number < books.trained:
        status = "fenced"
    if status == "ok":
        _move_to(books, number)
        books.limit, books.per_version, books.window = limit, per_version, window
        books.hints.append("room")
    return Done(status, books.branch, books.trained)


def evaluate(books: Books, branch: int, nonce: str, label: str, closed: str, spent: Sequence[Spent]) -> Done:
    """Names the open evaluation, or none: workers reserve from it first. `spent`: the tokens of the `closed` one."""
    status, before = fence(books, branch, nonce), books.evaluation
    if status == "ok":
        books.evaluation = label
        books.evaluated.update({(closed, one.source): (one.trajectories, one.tokens) for one in spent})
        books.hints.append("room")
    return Done(status, books.branch, books.trained, evaluation=before)
