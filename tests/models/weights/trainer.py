"""What a trainer does in the weights model: claim, upload, flip, look its flip up, advance, train, anchor, prune."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.models.explorer import Move, Step, Violation
from tests.models.weights.state import (
    ADVANCE,
    BOOT,
    DELTA,
    FLIP,
    ORIGIN,
    PUBLISH,
    TRAIN,
    UNSURE,
    Body,
    Checkpoint,
    Flip,
    Key,
    Record,
    Setting,
    State,
    Trainer,
    anchor_key,
    anchor_place,
    is_fenced,
    is_valid,
    may_train,
    next_place,
    place_of,
)

SEATS = {"trainer": "trainer", "old trainer": "old"}
"""Who -> its field of State."""
NOWHERE = 99
"""Length of a log that a base which is not in the log expects."""


def trainer_moves(setting: Setting, state: State) -> Iterator[Move[State]]:
    """Moves of the trainer, its crashes, what the old one does when it wakes up, and a flip that comes late."""
    yield from _moves(setting, state, "trainer")
    if state.faults.crashes and state.trainer.phase != BOOT:
        gone = state.spend("crashes")._replace(trainer=Trainer())
        yield Move(Step("trainer", "crash"), True, gone)
        if state.old is None:
            yield Move(Step("trainer", "stall"), True, gone._replace(old=state.trainer))
    if state.old is not None:
        for step, _, after in _moves(setting, state, "old trainer"):
            yield Move(step, True, after)
    if state.late is not None:
        at, record, claim = state.late
        is_taken = len(state.log) == at and not is_fenced(setting, state, record.version[0], claim)
        after = state._replace(late=None)
        after = _flipped(after, record, claim) if is_taken else after
        yield Move(Step("network", "flip", record.version, "late" if is_taken else "late, refused"), False, after)


def _moves(setting: Setting, state: State, who: str) -> Iterator[Move[State]]:
    trainer: Trainer = getattr(state, SEATS[who])
    if setting.rules.lost_head and trainer.snapshot and place_of(setting, state, trainer.snapshot, exact=True) is None:
        trainer = trainer._replace(snapshot=None)  # the log is behind the snapshot: the next version goes whole
    yield from PHASES[trainer.phase](setting, state, who, trainer)


def _seat(state: State, who: str, trainer: Trainer | None) -> State:
    """With that trainer in its place. None: it ends; somebody restarts the trainer, nobody an old one."""
    if trainer is None and who == "trainer":
        trainer = Trainer()
    changes: dict[str, Any] = {SEATS[who]: trainer}
    return state._replace(**changes)


def _claim(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    branch, number = state.owner + 1, state.checkpoint.number
    snapshot = state.head.version if anchor_place(state) is not None else None
    phase = PUBLISH if setting.rules.publish_first else TRAIN
    claim = state.claims + 1
    resumed = Trainer(phase, branch, number, state.checkpoint.bits, snapshot, claim=claim)
    owned = state._replace(owner=branch, claims=claim, claimed=claim, before=(state.owner, state.claimed))
    after = _seat(owned if state.faults.claims else owned._replace(before=(0, 0)), who, resumed)
    yield Move(Step(who, "claim", (branch, number)), False, after)


def _upload(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    head, snapshot, number = state.head.version, trainer.snapshot, trainer.number
    if not setting.rules.own_number and head[0] == trainer.branch:
        number = head[1] + 1
    version = (trainer.branch, number)
    place = place_of(setting, state, snapshot, exact=True)
    if snapshot is None:
        at, key, base = len(state.log), anchor_key(version), None
    else:
        at = NOWHERE if place is None else place + 1
        key = (DELTA, version, snapshot if setting.rules.write_once else None)
        base = snapshot if place is None else state.log[place].bits
    record = Record(version, trainer.bits, None if snapshot is None else key, snapshot is None)
    sent = trainer._replace(phase=FLIP, pending=Flip(at, record, trainer.claim))
    after = _seat(state.put_parts(key, Body(base, trainer.bits)), who, sent)
    yield Move(Step(who, "put_part", version, key[0]), False, after)


def _flip(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    assert trainer.pending is not None, "it has uploaded"
    at, record, claim = trainer.pending
    step = Step(who, "flip", record.version)
    if is_fenced(setting, state, trainer.branch, claim):
        yield Move(step._replace(how="fenced"), False, _seat(state, who, None))
    elif len(state.log) != at and setting.rules.idem_flip and record in state.log:
        yield Move(step._replace(how="done already"), False, _seat(state, who, trainer._replace(phase=ADVANCE)))
    elif len(state.log) != at:
        snapshot = trainer.snapshot
        if setting.rules.lost_head and anchor_place(state) is not None:
            snapshot = state.head.version
        again = trainer._replace(phase=PUBLISH, snapshot=snapshot, pending=None)
        yield Move(step._replace(how="base is not head"), False, _seat(state, who, again))
    elif trainer.branch < state.owner or (trainer.branch == state.owner and claim != state.claimed):
        yield Move(step, False, Violation("an old trainer flips after the takeover"))
    else:
        done = _flipped(state, record, claim)
        yield Move(step, False, _seat(done, who, trainer._replace(phase=ADVANCE)))
        if state.faults.replies:
            unsure = trainer._replace(phase=UNSURE)
            yield Move(step._replace(how="reply lost"), True, _seat(done.spend("replies"), who, unsure))
            if state.late is None:
                sent = state.spend("replies")._replace(late=trainer.pending)
                yield Move(step._replace(how="delayed"), True, _seat(sent, who, unsure))


def _flipped(state: State, record: Record, claim: int) -> State:
    """With that record as head, and its branch as the owner if the log had lost the claim."""
    branch = record.version[0]
    owner: dict[str, Any] = {} if branch <= state.owner else {"owner": branch, "claimed": claim}
    return state._replace(log=(*state.log, record), **owner)


def _look(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    """No answer is not a failure: the log says whether the flip is done."""
    assert trainer.pending is not None, "it has flipped"
    if setting.rules.idem_flip and state.head == trainer.pending.record:
        yield Move(Step(who, "head", how="its flip is done"), False, _seat(state, who, trainer._replace(phase=ADVANCE)))
        return
    failed = trainer._replace(phase=PUBLISH, pending=None)
    yield Move(Step(who, "head", how="its publish failed"), False, _seat(state, who, failed))
    if may_train(setting, state, trainer):
        number = trainer.number + 1
        on = failed._replace(number=number, bits=(trainer.claim, number))
        yield Move(Step(who, "train", (number,), "its publish failed"), False, _seat(state, who, on))


def _advance(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    assert trainer.pending is not None, "it has flipped"
    version = trainer.pending.record.version
    after = _seat(state, who, trainer._replace(phase=TRAIN, snapshot=version, pending=None))
    yield Move(Step(who, "advance snapshot", version), False, after)


def _train(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    branch, number, head = trainer.branch, trainer.number, state.head
    if setting.rules.lost_head and head.version != (branch, number):
        again = trainer._replace(phase=PUBLISH, pending=None)
        yield Move(Step(who, "head", how="head is not its version"), False, _seat(state, who, again))
    if number < setting.versions and may_train(setting, state, trainer):
        on = trainer._replace(phase=PUBLISH, number=number + 1, bits=(trainer.claim, number + 1))
        yield Move(Step(who, "train", (number + 1,)), False, _seat(state, who, on))
    checkpoint = Checkpoint(number, trainer.bits)
    if who == "trainer" and state.checkpoint != checkpoint:
        yield Move(Step(who, "checkpoint", (branch, number)), False, state._replace(checkpoint=checkpoint))
    if who == "trainer" and trainer.snapshot == head.version:
        yield from _anchors(setting, state, who, trainer)
    if is_fenced(setting, state, branch, trainer.claim):
        return  # pruning is fenced, too
    at = max(place for place, record in enumerate(state.log) if record.has_anchor)
    pruned = _pruned(setting, state, at)
    if pruned != state:
        yield Move(Step(who, "prune", state.log[at].version), True, pruned)


def _anchors(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    head = state.head
    is_asked = setting.rules.needs and any(
        s.host is None or (next_place(setting, state, s) is None and s.host != head.version) for s in state.servers
    )
    is_there = head.has_anchor and anchor_key(head.version) in dict(state.parts)
    if is_there or not (is_asked or (state.faults.anchors and not head.has_anchor)):
        return
    step = Step(who, "commit_anchor", head.version, "asked for" if is_asked else "due")
    written = state.put_parts(anchor_key(head.version), Body(None, trainer.bits))
    done = written._replace(log=(*state.log[:-1], head._replace(has_anchor=True)))
    yield Move(step, not is_asked, done if is_asked else done.spend("anchors"))
    if not setting.rules.committed_anchor and not is_asked:
        gone = _pruned(setting, written, len(state.log) - 1).spend("anchors")._replace(trainer=Trainer())
        yield Move(Step(who, "crash", how="wrote an anchor and pruned, before its commit"), True, gone)


def _pruned(setting: Setting, state: State, at: int) -> State:
    """Without what is older than the anchor at that place and than what a living server needs."""
    held = [place_of(setting, state, server.acked) for server in state.servers if is_valid(setting, server)]
    keep = min([place for place in held if place is not None] + [at])
    gone: set[Key] = {record.delta for record in state.log[: keep + 1] if record.delta is not None}
    gone |= {anchor_key(record.version) for record in state.log[:at]} - {anchor_key(ORIGIN)}
    return state.delete_parts(gone | ({anchor_key(ORIGIN)} if at else set()))


Phase = Callable[[Setting, State, str, Trainer], Iterator[Move[State]]]
PHASES: dict[str, Phase] = {
    BOOT: _claim,
    PUBLISH: _upload,
    FLIP: _flip,
    UNSURE: _look,
    ADVANCE: _advance,
    TRAIN: _train,
}
