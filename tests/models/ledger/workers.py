"""What workers and their claims do in the ledger model: reserve, write, put, filter, release, and the sweep."""

from collections.abc import Iterator

from buffer.books import FILTERED, IN_FLIGHT, LEASED, OPEN, READY, WAITING
from tests.models.explorer import Move, Step
from tests.models.ledger.state import PLAYS, WRITTEN, Books, Entry, Setting, State, Worker, distance


def worker_moves(setting: Setting, state: State) -> Iterator[Move[State]]:
    """Moves of every worker, then those of the sweep."""
    for place, worker in enumerate(state.workers):
        if worker is None:
            yield from _reserve(setting, state, place)
        else:
            yield from _plays(setting, state, place, worker)
    yield from _sweep(setting, state)


def _with(state: State, place: int, worker: Worker | None, books: Books) -> State:
    workers = (*state.workers[:place], worker, *state.workers[place + 1 :])
    return state._replace(workers=workers, books=books)


def _reserve(setting: Setting, state: State, place: int) -> Iterator[Move[State]]:
    books = state.books
    waiting = next((o for o, e in enumerate(books.entries) if e.state == WAITING), None)
    ordinal = len(books.entries) if waiting is None else waiting
    if books.branch == 0 or ordinal >= setting.ordinals or not _admitted(setting, books, waiting):
        return
    attempt = 0
    if not setting.rules.nonce:  # nothing else reads it, and uncounted it makes no states
        attempt = 1 if waiting is None else books.entries[ordinal].attempt + 1
    token = _fresh_token(state, ordinal)
    if waiting is None:
        books = books._replace(entries=(*books.entries, Entry(IN_FLIGHT, attempt, token)))
    else:
        books = books.set(ordinal, state=IN_FLIGHT, attempt=attempt, token=token)
    worker = Worker(ordinal, attempt, token, (books.branch, books.trained), PLAYS)
    step = Step(f"worker {place}", "reserve", (ordinal,))
    yield Move(step, False, _with(state, place, worker, books))
    if state.faults.replies:
        yield Move(step._replace(how="reply lost"), True, _with(state.spend("replies"), place, None, books))


def _admitted(setting: Setting, books: Books, waiting: int | None) -> bool:
    per_version = setting.groups(books.branch)
    if not setting.rules.window:
        started = sum(e.state != FILTERED for e in books.entries)
        return started < (setting.limit + books.trained + 1) * per_version
    before = books.entries[:waiting] if setting.rules.by_place else books.entries
    return sum(e.state in OPEN for e in before) + len(books.taken) < (setting.limit + 1) * per_version


def _fresh_token(state: State, ordinal: int) -> int:
    used = [w.token for w in state.workers if w and w.ordinal == ordinal]
    for books in (state.books, state.saved):
        if books and ordinal < len(books.entries):
            used += [books.entries[ordinal].token, books.entries[ordinal].payload]
    return 1 + max(used, default=0)


def _plays(setting: Setting, state: State, place: int, worker: Worker) -> Iterator[Move[State]]:
    books, ordinal = state.books, worker.ordinal
    owns = _owns(setting, books, worker)
    holds = owns and books.entries[ordinal].state == IN_FLIGHT
    step = Step(f"worker {place}", "", (ordinal,))
    if worker.phase == PLAYS:
        # The key holds the writer's token, so a writer who lost the ordinal writes where nobody looks.
        written = books.set(ordinal, payload=worker.token) if owns else books
        after = _with(state, place, worker._replace(phase=WRITTEN), written)
        yield Move(step._replace(word="write"), False, after)
        if holds and state.faults.filtered:
            gone = books.set(ordinal, state=FILTERED, token=0)
            yield Move(step._replace(word="filter"), False, _with(state.spend("filtered"), place, None, gone))
        if holds and state.faults.workers:
            failed = books.set(ordinal, state=WAITING)
            yield Move(step._replace(word="release"), True, _with(state.spend("workers"), place, None, failed))
    else:
        put = _put(setting, state, worker)
        yield Move(step._replace(word="put"), False, _with(state, place, None, put))
        if state.faults.replies:
            lost = _with(state.spend("replies"), place, worker, put)
            yield Move(step._replace(word="put", how="reply lost"), True, lost)
    if state.faults.workers:
        yield Move(step._replace(word="crash"), True, _with(state.spend("workers"), place, None, books))


def _owns(setting: Setting, books: Books, worker: Worker) -> bool:
    if worker.ordinal >= len(books.entries):
        return False
    entry = books.entries[worker.ordinal]
    return entry.token == worker.token if setting.rules.nonce else entry.attempt == worker.attempt


def _put(setting: Setting, state: State, worker: Worker) -> Books:
    books, ordinal = state.books, worker.ordinal
    if not _owns(setting, books, worker):
        return books  # fenced, and its own payload removed
    entry = books.entries[ordinal]
    if entry.state == IN_FLIGHT:
        # Of a branch that the books have forgotten they know nothing: the next recover, or the lease, judges the group.
        lag = distance(state.forks, worker.version, (books.branch, books.trained))
        if lag > setting.limit and worker.version[0] <= books.branch and setting.rules.tree_lag:
            return books.wait(ordinal)
        return books.set(ordinal, state=READY, version=worker.version, token=worker.token)
    if entry.state in (READY, LEASED) and not setting.rules.put_idem:
        return books.set(ordinal, payload=0)
    return books


def _sweep(setting: Setting, state: State) -> Iterator[Move[State]]:
    held = {(w.ordinal, w.token) for w in state.workers if w}
    for ordinal, entry in enumerate(state.books.entries):
        if entry.state == IN_FLIGHT:
            stalls = (ordinal, entry.token) in held
            if stalls and not state.faults.workers:
                continue
            after = state._replace(books=state.books.wait(ordinal))
            how = "its worker stalls" if stalls else ""
            yield Move(Step("anyone", "sweep", (ordinal,), how), stalls, after.spend("workers") if stalls else after)
        elif entry.state == LEASED and not setting.rules.no_expiry and state.faults.workers:
            after = state._replace(books=state.books.set(ordinal, state=READY, step=None))
            yield Move(Step("anyone", "sweep", (ordinal,), "its trainer stalls"), True, after.spend("workers"))
