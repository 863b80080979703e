"""What the trainer does in the admission model: lease, hold a lease, train, publish, advance, checkpoint."""

from collections.abc import Callable, Iterator

from buffer.books import CONSUMED, IN_FLIGHT, LEASED, OPEN, READY, WAITING
from buffer.staleness import must_wait, oldest_allowed
from tests.models.admission.state import ADVANCE, COMMIT, LEASE, PUBLISH, TRAIN, Entry, Setting, State
from tests.models.admission.workers import BYTES, admission
from tests.models.explorer import Move, Step, Violation

WHO = "trainer"


def trainer_moves(setting: Setting, state: State) -> Iterator[Move[State]]:
    """What the trainer does next, by its phase."""
    yield from PHASES[state.phase](setting, state)


def _lease(setting: Setting, state: State) -> Iterator[Move[State]]:
    if state.number >= setting.versions:
        return
    if setting.rules.retry_publish and state.number - state.head > setting.limit:
        yield Move(Step(WHO, "publish", (state.number,), "again"), False, state._replace(head=state.number))
        return
    limit, step = setting.limit, Step(WHO, "lease")
    least = oldest_allowed(state.number if setting.rules.own_number else state.trained, limit)
    after = state
    if setting.rules.own_number and state.number > state.trained:
        after = after._replace(trained=state.number, taken=0)
    for ordinal, entry in enumerate(state.entries):
        if entry.state == READY and _age(entry) < least:
            if setting.strict:
                yield Move(step, False, Violation(f"ordinal {ordinal} of {entry.oldest} is ready: born stale"))
                return
            after = after.set(ordinal, Entry(WAITING, failures=entry.failures))
    batch = _batch(setting, after)
    if batch and not _is_held(setting, after):
        for ordinal in batch:
            if state.number - _age(after.entries[ordinal]) > limit:
                text = f"ordinals {batch} are leased for {state.number} with a lag above the limit"
                yield Move(step, False, Violation(text))
                return
            after = after.set(ordinal, after.entries[ordinal]._replace(state=LEASED))
        leased = after._replace(phase=TRAIN, taken=after.taken + len(batch))
        yield Move(step._replace(about=batch), False, leased)
        return
    if setting.rules.publish_waiting and not batch and state.head < state.number:
        yield Move(Step(WHO, "publish", (state.number,), "while it waits"), False, state._replace(head=state.number))
    if after != state:
        yield Move(step._replace(how="too few"), False, after)
    elif not batch and setting.rules.early_ck and admission(setting, state) == BYTES and _holds_groups(state):
        yield Move(Step(WHO, "commit", how="early"), False, _committed(state))


def _holds_groups(state: State) -> bool:
    return any(entry.state == LEASED for entry in state.entries)


def _age(entry: Entry) -> int:
    assert entry.oldest is not None, "what is ready or leased has tokens"
    return entry.oldest


def _batch(setting: Setting, state: State) -> tuple[int, ...]:
    entries, count = state.entries, setting.per_version
    if setting.order == "oldest":
        ready = [o for o, e in enumerate(entries) if e.state == READY]
        chosen = sorted(ready, key=lambda o: (_age(entries[o]), o))[:count]
    else:
        chosen = [o for o, e in enumerate(entries) if e.state in OPEN][:count]
        chosen = chosen if all(entries[o].state == READY for o in chosen) else []
    return tuple(sorted(chosen)) if len(chosen) == count else ()


def _is_held(setting: Setting, state: State) -> bool:
    """Whether `wait` holds the lease for last-chance groups in flight."""
    if setting.policy != "wait" or not setting.rules.at_lease or setting.order != "oldest":
        return False
    least = oldest_allowed(state.number, setting.limit)
    flying = sum(e.state == IN_FLIGHT and e.oldest == least for e in state.entries)
    if not setting.rules.surplus:
        return flying > 0
    ready = sum(e.state == READY and e.oldest == least for e in state.entries)
    remaining = max(setting.per_version - state.taken, setting.per_version)
    return must_wait(ready, flying, setting.per_version, remaining)


def _train(setting: Setting, state: State) -> Iterator[Move[State]]:
    yield Move(Step(WHO, "train"), False, state._replace(phase=PUBLISH, number=state.number + 1))


def _publish(setting: Setting, state: State) -> Iterator[Move[State]]:
    if setting.policy == "wait" and not setting.rules.at_lease:
        least = oldest_allowed(state.number, setting.limit)
        # It waits for groups that the next batch can no longer take; only a deadline would end it.
        if any(e.state in (IN_FLIGHT, READY) and e.oldest is not None and e.oldest < least for e in state.entries):
            return
    step = Step(WHO, "publish", (state.number,))
    yield Move(step, False, state._replace(head=state.number, phase=ADVANCE))
    if state.faults.publishes:
        failed = state.spend("publishes")
        # `advance` follows training. In the first draft it followed the publish.
        goes_on = failed._replace(phase=ADVANCE) if setting.rules.own_number else failed._replace(phase=LEASE)
        yield Move(step._replace(how="fails"), True, goes_on)


def _advance(setting: Setting, state: State) -> Iterator[Move[State]]:
    since = state.since + 1
    phase = COMMIT if since >= setting.checkpoint_every else LEASE
    after = state._replace(phase=phase, trained=state.number, taken=0, since=since)
    yield Move(Step(WHO, "advance", (state.number,)), False, after)


def _commit(setting: Setting, state: State) -> Iterator[Move[State]]:
    yield Move(Step(WHO, "commit"), False, _committed(state)._replace(phase=LEASE))


def _committed(state: State) -> State:
    entries = tuple(Entry(CONSUMED) if e.state == LEASED else e for e in state.entries)
    return state._replace(entries=entries, since=0)


Phase = Callable[[Setting, State], Iterator[Move[State]]]
PHASES: dict[str, Phase] = {LEASE: _lease, TRAIN: _train, PUBLISH: _publish, ADVANCE: _advance, COMMIT: _commit}
