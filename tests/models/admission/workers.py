"""What workers and their claims do in the admission model: reserve, start, put, park, stop, die, and the sweep."""

from collections.abc import Iterator

from buffer.books import DEAD, FILTERED, IN_FLIGHT, READY, WAITING
from buffer.staleness import admits, oldest_allowed, start_from, window
from tests.models.admission.state import ALIVE, LOST, PREEMPTED, STARTED, Entry, Setting, State, charged
from tests.models.explorer import Move, Step, Violation

BYTES, WINDOW = "bytes", "window"


def admission(setting: Setting, state: State) -> int | str:
    """The ordinal that a worker would get now, or why there is none."""
    waiting = next((o for o, e in enumerate(state.entries) if e.state == WAITING), None)
    ordinal = len(state.entries) if waiting is None else waiting
    is_admitted = admits(state.ahead(ordinal), state.taken, window(setting.limit, setting.per_version))
    if not is_admitted or ordinal >= setting.ordinals:
        return WINDOW
    used = charged(setting, state)
    if setting.rules.credit:
        return BYTES if waiting is None and used + 1 > setting.max_groups else ordinal
    return BYTES if used >= setting.max_groups else ordinal


def worker_moves(setting: Setting, state: State) -> Iterator[Move[State]]:
    """Moves of workers and the sweep."""
    yield from _reserve(setting, state)
    if state.server < state.head:
        yield Move(Step("server", "follow", (state.head,)), False, state._replace(server=state.head))
    for ordinal, entry in enumerate(state.entries):
        if entry.state == IN_FLIGHT and entry.worker == ALIVE:
            yield from _starts(setting, state, ordinal, entry)
            yield from _leaves(setting, state, ordinal, entry)
            if entry.oldest is not None and entry.start_from == STARTED:
                yield from _puts(setting, state, ordinal, entry, entry.oldest)
        elif entry.state == DEAD and state.faults.resubmits:
            again = state.set(ordinal, Entry(WAITING)).spend("resubmits")
            yield Move(Step("operator", "resubmit", (ordinal,)), True, again)
    yield from _preempted(state)
    yield from _sweep(setting, state)


def _reserve(setting: Setting, state: State) -> Iterator[Move[State]]:
    flying = [e.worker for e in state.entries if e.state == IN_FLIGHT]
    ordinal = admission(setting, state)
    # A cluster that was preempted comes back later than its claims expire.
    if isinstance(ordinal, str) or flying.count(ALIVE) >= setting.workers or PREEMPTED in flying:
        return
    step = Step("worker", "reserve", (ordinal,))
    old = state.entries[ordinal] if ordinal < len(state.entries) else Entry(WAITING)
    parked = old.parked
    if parked is not None and parked < oldest_allowed(state.trained, setting.limit):
        if not setting.rules.fresh_retry:
            text = f"ordinal {ordinal} goes on from tokens of {parked}, too old for {state.trained}: for ever"
            yield Move(step, False, Violation(text))
            return
        parked = None
    due_from = state.head - setting.limit
    if setting.rules.start_from:
        due_from = start_from(state.trained, state.ahead(ordinal), state.taken, setting.per_version, setting.limit)
    entry = Entry(IN_FLIGHT, parked, parked, ALIVE, max(due_from, 0), old.failures)
    yield Move(step, False, state.set(ordinal, entry))


def _starts(setting: Setting, state: State, ordinal: int, entry: Entry) -> Iterator[Move[State]]:
    """A server that is new enough for the claim samples its first tokens."""
    if entry.start_from == STARTED or state.server < entry.start_from:
        return
    oldest = state.server if entry.oldest is None else min(entry.oldest, state.server)
    after = state.set(ordinal, entry._replace(oldest=oldest, start_from=STARTED))
    yield Move(Step("worker", "sample", (ordinal, state.server)), False, after)


def _puts(setting: Setting, state: State, ordinal: int, entry: Entry, oldest: int) -> Iterator[Move[State]]:
    step = Step("worker", "put", (ordinal,))
    if oldest < oldest_allowed(state.trained, setting.limit):
        if setting.strict:
            yield Move(step, False, Violation(f"ordinal {ordinal} of {oldest} arrives at {state.trained}: born stale"))
            return
        parked = None if setting.rules.fresh_retry else entry.parked
        after = state.set(ordinal, Entry(WAITING, parked=parked, failures=entry.failures))
        yield Move(step._replace(how="stale"), False, after)
    elif setting.rules.credit or charged(setting, state) < setting.max_groups:
        yield Move(step, False, state.set(ordinal, Entry(READY, oldest, failures=entry.failures)))
    if state.faults.filtered:
        after = state.set(ordinal, Entry(FILTERED)).spend("filtered")
        yield Move(Step("worker", "filter", (ordinal,)), True, after)


def _leaves(setting: Setting, state: State, ordinal: int, entry: Entry) -> Iterator[Move[State]]:
    about = (ordinal,)
    if state.faults.deaths:
        after = state.set(ordinal, entry._replace(worker=LOST)).spend("deaths")
        yield Move(Step("worker", "crash", about), True, after)
    if state.faults.parks and entry.oldest is not None and entry.parked != entry.oldest:
        after = state.set(ordinal, entry._replace(parked=entry.oldest)).spend("parks")
        yield Move(Step("worker", "park", about), True, after)
    back = state.set(ordinal, Entry(WAITING, parked=entry.parked, failures=entry.failures))
    if state.faults.stops:
        yield Move(Step("worker", "release", about, "abandoned"), True, back.spend("stops"))
    if state.faults.letters:
        after = state.set(ordinal, Entry(DEAD)).spend("letters")
        yield Move(Step("worker", "release", about, "fatal"), True, after)


def _preempted(state: State) -> Iterator[Move[State]]:
    flying = [o for o, e in enumerate(state.entries) if e.state == IN_FLIGHT]
    if not state.faults.preemptions or len(flying) < 2 or any(state.entries[o].worker != ALIVE for o in flying):
        return
    after = state.spend("preemptions")
    for ordinal in flying:
        after = after.set(ordinal, after.entries[ordinal]._replace(worker=PREEMPTED))
    yield Move(Step("cluster", "preempt", tuple(flying)), True, after)


def _sweep(setting: Setting, state: State) -> Iterator[Move[State]]:
    expired = [o for o, e in enumerate(state.entries) if e.state == IN_FLIGHT and e.worker != ALIVE]
    if not expired:
        return
    num_flying = sum(e.state == IN_FLIGHT for e in state.entries)
    is_excused = setting.rules.excuse and len(expired) > 1 and 2 * len(expired) > num_flying
    step, after = Step("anyone", "sweep", tuple(expired)), state
    for ordinal in expired:
        entry = state.entries[ordinal]
        failures = entry.failures + bool(setting.max_attempts and not is_excused)
        dies = failures >= setting.max_attempts > 0
        if dies and entry.worker == PREEMPTED:
            text = f"ordinal {ordinal} dies of a failure, and only its whole cluster was preempted"
            yield Move(step, False, Violation(text))
            return
        after = after.set(ordinal, Entry(DEAD if dies else WAITING, parked=entry.parked, failures=failures))
    yield Move(step, False, after)
