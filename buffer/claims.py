"""The transitions of workers that hold a claim, as pure rules on the books: renew, put, park, filter, release, and the
sweep of lost claims.

These are the reference for the scripts of the same names: plain and slow, checked before the first change, one at a
time.
"""

from buffer.books import DEAD, DISCARDED, FILTERED, IN_FLIGHT, LEASED, READY, WAITING, Books, Card, Index, Spent
from buffer.draws import NO_RESULT, PassRate, Result
from buffer.staleness import oldest_allowed
from buffer.store import Limits, Renewed, Swept

MAX_EXCUSES = 9
"""Losses with a whole cluster that one ordinal is excused: a prompt that kills every worker at once must end, too."""


def count_if_alive(books: Books, reason: str) -> None:
    """Count a call that was refused."""
    if books.branch:  # a late call must not bring a dropped ledger back to life
        books.count_reason(reason)


def is_late(books: Books, index: Index) -> bool:
    """Past the limit. Of a branch that is newer than the books' nothing is known: Redis lost its recover, and the next
    one judges the group."""
    if any(branch > books.branch for branch, _, _ in index.ranges):
        return False
    return books.oldest_effective(index.ranges) < oldest_allowed(books.trained, books.limit)


def renew(
    books: Books,
    now: int,
    ordinal: int,
    token: str,
    oldest: tuple[int, int] | None,
    num_sampled: int,
    limits: Limits,
) -> Renewed:
    """Moves the deadline of a claim, also when it is late but not yet swept, and notes what was sampled so far."""
    card = books.cards.get(ordinal)
    state = "fenced"
    if card is not None and card.token == token:
        state = {IN_FLIGHT: "held", READY: "done", LEASED: "done"}.get(card.state, "fenced")
    if card is None or state != "held":
        return Renewed(state, books.trained, 0, len(books.taken), books.stopped, None)
    books.in_flight[ordinal] = now + limits.claim_ms
    if oldest is not None:
        card.oldest, card.num_sampled = oldest, num_sampled
        books.sampling[ordinal] = books.effective(*oldest)
    effective = books.sampling.get(ordinal)
    return Renewed(state, books.trained, books.ahead(ordinal), len(books.taken), books.stopped, effective)


def put(
    books: Books,
    now: int,
    ordinal: int,
    token: str,
    key: str,
    index: Index,
    limits: Limits,
    result: Result = NO_RESULT,
) -> str:
    """in_flight -> ready; or, stale on arrival, -> waiting or discarded. A repeat is `done`, any other `fenced`."""
    card = books.cards.get(ordinal)
    if card is not None and card.token == token and card.state in (READY, LEASED):
        return "done"
    if card is None or card.token != token or card.state != IN_FLIGHT:
        return _fence_payload(books, key, index.spent)
    _take_over_parked(books, card, index.spent)
    _note(books, ordinal, result)
    card.key, card.index, card.since_ms, card.oldest, card.num_sampled = key, index, now, None, 0
    books.resident_bytes += index.num_bytes
    if is_late(books, index) and limits.on_stale != "mask":
        drop_stale(books, ordinal, card, limits)
        books.hints.append("room")
        return "stale"
    books.make_ready(ordinal, card)
    books.hints.append("ready")
    return "ready"


def _fence_payload(books: Books, key: str, spent: Spent) -> str:
    # The payload in the trash is the mark that this call was counted: a repeat finds it there.
    if books.branch and key not in books.trash:
        books.count_reason("fenced")
        books.waste("failed/fenced", spent)
    books.dump(key)
    return "fenced"


def _note(books: Books, ordinal: int, result: Result) -> None:
    if result != NO_RESULT:
        books.pass_rates[result.prompt] = PassRate(result.passed, result.scored, ordinal)


def _take_over_parked(books: Books, card: Card, spent: Spent) -> None:
    """The tokens of `spent` come in; they contain those that were parked."""
    books.sampled += spent.tokens - card.parked.spent.tokens
    books.discard_parked(card)


def park(books: Books, ordinal: int, token: str, key: str, index: Index) -> str:
    """Stays in_flight; the payload is kept for the next owner, in place of what was parked before."""
    card = books.cards.get(ordinal)
    if card is None or card.token != token or card.state != IN_FLIGHT:
        books.dump(key)
        return "fenced"
    if card.parked_key != key:
        _take_over_parked(books, card, index.spent)
        card.parked_key, card.parked = key, index
    return "parked"


def drop_stale(books: Books, ordinal: int, card: Card, limits: Limits) -> str:
    """Past the limit: -> waiting, at no cost but a count, or -> discarded. Answers which."""
    books.count_reason("stale")
    again = limits.on_stale == "resubmit" and card.stales < limits.max_stale
    books.spend("stale/resubmitted" if again else "stale/discarded", card.index.spent)
    if again:
        card.stales += 1
        books.wait(ordinal, card)
        card.token = ""  # whoever holds this token has lost the ordinal
        return WAITING
    books.close(ordinal, card, DISCARDED)
    return DISCARDED


def filter_group(books: Books, ordinal: int, token: str, reason: str, spent: Spent, result: Result = NO_RESULT) -> str:
    """in_flight -> filtered: the worker found no learning signal in the group."""
    card = books.cards.get(ordinal)
    if card is None or card.token != token or card.state != IN_FLIGHT:
        count_if_alive(books, "fenced")
        return "fenced"
    _take_over_parked(books, card, spent)
    _note(books, ordinal, result)
    books.spend(f"filtered/{reason}", spent)
    books.close(ordinal, card, FILTERED)
    books.count_reason(reason)
    books.hints.append("room")
    return FILTERED


def release(
    books: Books,
    now: int,
    ordinal: int,
    token: str,
    reason: str,
    error: str,
    kind: str,
    spent: Spent,
    limits: Limits,
) -> str:
    """in_flight -> waiting or dead. kind: `failed` (counted), `fatal` (dead at once) or `abandoned` (costs nothing).

    What was parked stays for the next owner of an abandoned ordinal; after a failure it may be the cause, so it goes.
    `spent`: the tokens that are lost by this.
    """
    card = books.cards.get(ordinal)
    if card is not None and card.token == token and card.state in (WAITING, DEAD):
        return card.state  # the reply to the first call was lost
    if card is None or card.token != token or card.state != IN_FLIGHT:
        count_if_alive(books, "fenced")
        return "fenced"
    books.count_reason(reason)
    books.hints.append("room")
    if kind == "abandoned":
        books.waste(f"failed/{reason}", spent)
        books.wait(ordinal, card)
        return WAITING
    lost = max(spent, card.parked.spent, key=lambda s: s.tokens)
    _take_over_parked(books, card, lost)
    books.spend(f"failed/{reason}", lost)
    return fail(books, now, ordinal, card, reason, error, limits, fatal=kind == "fatal")


def fail(
    books: Books, now: int, ordinal: int, card: Card, reason: str, error: str, limits: Limits, *, fatal: bool = False
) -> str:
    """One failure more: -> waiting, or -> dead at the last one. Answers which."""
    card.failures += 1
    card.reason, card.error = reason, error
    if fatal or card.failures >= limits.max_attempts:
        books.die(ordinal, card, reason, error, now, limits.max_dead_bytes)
        return DEAD
    books.wait(ordinal, card)
    return WAITING


def sweep(books: Books, now: int, restarted: bool, limits: Limits) -> Swept:
    """Expired claims -> waiting or dead.

    After a restart of the server, or when its clock went back by more than a claim, deadlines mean nothing: the
    first sweep only sets each of them one claim ahead. Most of in_flight silent at once is a cluster preempted, and
    nobody's failure. Silent is who has missed a renewal: they come at least every third of a claim, at no common time,
    so the deadlines of a dead cluster pass one after the other.
    """
    if books.branch == 0:
        return Swept((), (), False, False, ())
    guarded = restarted or now < books.swept_ms - limits.claim_ms
    books.swept_ms = now
    if guarded:
        books.in_flight = dict.fromkeys(books.in_flight, now + limits.claim_ms)
        return Swept((), (), True, False, tuple(sorted(books.trash))[:256])
    expired = sorted(o for o, deadline in books.in_flight.items() if deadline <= now)
    silent = sorted(o for o, deadline in books.in_flight.items() if deadline <= now + limits.claim_ms // 3)
    excused = bool(expired) and len(silent) > 1 and 2 * len(silent) > len(books.in_flight)
    if excused:
        expired = silent
    dead = []
    for ordinal in expired:
        card = books.cards[ordinal]
        books.count_reason("worker_lost")
        books.waste("failed/worker_lost", Spent(tokens=max(0, card.num_sampled - card.parked.spent.tokens)))
        if excused and card.excused < MAX_EXCUSES:
            card.excused += 1
            card.reason = "worker_lost"
            books.wait(ordinal, card)
        elif fail(books, now, ordinal, card, "worker_lost", f"worker {card.worker} fell silent", limits) == DEAD:
            dead.append(ordinal)
        card.token = ""  # a late call of the lost worker is fenced, also while the ordinal waits
    if expired:
        books.hints.append("room")
    return Swept(tuple(expired), tuple(dead), False, excused, tuple(sorted(books.trash))[:256])
