"""What a trainer does in the ledger model: recover, lease, train, advance, checkpoint, commit, and being fenced."""

from collections.abc import Callable, Iterator
from typing import Any

from buffer.books import CONSUMED, DEAD, LEASED, READY, TRAINED_STEP, WAITING
from buffer.closing import MAX_POISON
from tests.models.explorer import Move, Step, Violation
from tests.models.ledger.state import (
    ADVANCE,
    BOOT,
    COMMIT,
    GIVE_BACK,
    LEASE,
    TRAIN,
    Books,
    Checkpoint,
    Entry,
    Setting,
    State,
    Trainer,
    distance,
)

SEATS = {"trainer": "trainer", "old trainer": "old"}
"""Who -> its field of State."""


def trainer_moves(setting: Setting, state: State) -> Iterator[Move[State]]:
    """Moves of the trainer, its crashes, and what the old one does when it wakes up."""
    yield from _moves(setting, state, "trainer")
    if state.faults.crashes and state.trainer.phase != BOOT:
        gone = state.spend("crashes")._replace(trainer=Trainer())
        yield Move(Step("trainer", "crash"), True, gone)
        if state.old is None:
            yield Move(Step("trainer", "stall"), True, gone._replace(old=state.trainer))
    if state.old is not None:
        for step, _, after in _moves(setting, state, "old trainer"):
            yield Move(step, True, after)


def _moves(setting: Setting, state: State, who: str) -> Iterator[Move[State]]:
    trainer = getattr(state, SEATS[who])
    phase, books = trainer.phase, state.books
    if phase in WORDS and _is_fenced(setting, books, trainer):
        yield Move(Step(who, WORDS[phase], how="fenced"), False, _seat(state, who, None))
        if phase == LEASE and trainer.since:  # the rename of a checkpoint asks nobody
            yield Move(Step(who, "checkpoint"), True, _seat(_checkpoint(state, trainer), who, None))
        return
    yield from PHASES[phase](setting, state, who, trainer)


def _is_fenced(setting: Setting, books: Books, trainer: Trainer) -> bool:
    if trainer.branch != books.branch or trainer.number < books.trained:
        return True
    return setting.rules.branch_nonce and trainer.nonce != books.nonce


def _seat(state: State, who: str, trainer: Trainer | None) -> State:
    """With that trainer in its place. None: it ends; somebody restarts the trainer, nobody an old one."""
    if trainer is None and who == "trainer":
        trainer = Trainer()
    changes: dict[str, Any] = {SEATS[who]: trainer}
    return state._replace(**changes)


def _recover(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    by_branch = setting.rules.branch_first
    order = sorted(state.checkpoints, key=lambda c: (c.branch, c.number) if by_branch else (c.number, -c.branch))
    chosen = [(False, order[-1])]
    if state.faults.older:
        chosen += [(True, checkpoint) for checkpoint in order[:-1]]
    for is_older, checkpoint in chosen:
        branch = checkpoint.branch + 1
        if setting.rules.unique_branch:
            branch = 1 + max(state.books.branch, *(c.branch for c in state.checkpoints))
        if branch < state.books.branch:
            continue
        nonce = 1 + max(t.nonce for t in (state.books, state.saved, state.trainer, state.old) if t is not None)
        books = _recovered(setting, state.books, checkpoint)
        books = books._replace(branch=branch, trained=checkpoint.number, nonce=nonce)
        forks = (*(state.forks + ((0, 0),) * branch)[:branch], (checkpoint.branch, checkpoint.number))
        after = state._replace(books=books, forks=(*forks, *state.forks[branch + 1 :]))
        resumed = Trainer(LEASE, branch, checkpoint.number, (), (), checkpoint.history, nonce)
        step = Step(who, "recover", (branch, checkpoint.number), "from an older checkpoint" if is_older else "")
        yield Move(step, is_older, _seat(after.spend("older") if is_older else after, who, resumed))


def _recovered(setting: Setting, books: Books, checkpoint: Checkpoint) -> Books:
    books = books._replace(taken=(), entries=_with_gaps(books, checkpoint.history))
    newest = max((e.step for e in books.entries if e.state == LEASED and e.step is not None), default=TRAINED_STEP)
    for ordinal, entry in enumerate(books.entries):
        if ordinal in checkpoint.history:
            books = _consume(books, ordinal)
        elif entry.state == LEASED:
            poison = entry.poison + bool(setting.poisonous and entry.step == newest != TRAINED_STEP)
            dies = setting.rules.poison and poison >= MAX_POISON
            books = books.set(ordinal, state=DEAD if dies else READY, step=None, poison=poison)
        elif entry.state == CONSUMED and setting.rules.reopen:
            books = books.wait(ordinal)
    return books


def _with_gaps(books: Books, history: tuple[int, ...]) -> tuple[Entry, ...]:
    """Ordinals that Redis lost and the lineage names or passes over: they start again, unless they are named."""
    num_lost = max(history, default=-1) + 1 - len(books.entries)
    return (*books.entries, *(Entry(WAITING, 0, 0) for _ in range(num_lost)))


def _consume(books: Books, ordinal: int) -> Books:
    return books.set(ordinal, state=CONSUMED, token=0, version=None, payload=0, step=None)


def _lease(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    if trainer.since:
        saved = _checkpoint(state, trainer)
        yield Move(Step(who, "checkpoint"), False, _seat(saved, who, trainer._replace(phase=COMMIT)))
    if trainer.number >= setting.versions:
        return
    books, batch, is_new = _take(setting, state, trainer)
    lost_books = books
    while setting.rules.own_ledger and batch and set(batch) & set(trainer.history):
        # Redis lost its tail. What the lineage has trained stays leased for the next commit, and others take its place.
        for ordinal in set(batch) & set(trainer.history):
            books = books.set(ordinal, step=TRAINED_STEP)
            books = books._replace(taken=tuple(o for o in books.taken if o != ordinal))
        books, batch, _ = _take(setting, state._replace(books=books), trainer)
    after = state._replace(books=books)
    if is_new and state.faults.replies:
        step = Step(who, "lease", how="reply lost")
        yield Move(step, True, _seat(state.spend("replies")._replace(books=lost_books), who, trainer))
    if batch is None:
        if books != state.books:
            yield Move(Step(who, "lease", how="too few"), False, _seat(after, who, trainer))
        return
    step = Step(who, "lease", batch)
    if any(_lag(setting, state, trainer, books.entries[o], by_tree=True) > setting.limit for o in batch):
        yield Move(step, False, Violation(f"ordinals {batch} are leased with a lag above the limit"))
        return
    corrupt = tuple(o for o in batch if books.entries[o].payload != books.entries[o].token)
    phase, batch = (GIVE_BACK, corrupt) if corrupt else (TRAIN, batch)
    yield Move(step, False, _seat(after, who, trainer._replace(phase=phase, batch=batch)))


def _take(setting: Setting, state: State, trainer: Trainer) -> tuple[Books, tuple[int, ...] | None, bool]:
    """One call of the transition: the books after it, the batch or None, and whether something was taken now."""
    books, count = state.books, setting.groups(trainer.branch)
    if setting.rules.own_ledger and trainer.number > books.trained:
        books = books._replace(trained=trainer.number, taken=())
    for ordinal, entry in enumerate(books.entries):
        if entry.state == READY and _lag(setting, state, trainer, entry) > setting.limit:
            books = books.wait(ordinal)
    entries = books.entries
    have: tuple[int, ...] = ()
    if setting.rules.lease_idem:
        have = tuple(o for o, e in enumerate(entries) if e.state == LEASED and e.step == trainer.number)
    ready = [o for o, e in enumerate(entries) if e.state == READY]
    ready.sort(key=lambda o: (-_lag(setting, state, trainer, entries[o], by_tree=True), o))
    chosen = tuple(ready[: max(count - len(have), 0)])
    if len(have) + len(chosen) < count:
        return books, None, False
    for ordinal in chosen:
        books = books.set(ordinal, state=LEASED, step=trainer.number)
    books = books._replace(taken=tuple(sorted({*books.taken, *chosen})))
    return books, tuple(sorted((*have, *chosen))), bool(chosen)


def _lag(setting: Setting, state: State, trainer: Trainer, entry: Entry, *, by_tree: bool = False) -> int:
    assert entry.version is not None, "what is ready or leased was sampled from a version"
    if by_tree or setting.rules.tree_lag:
        return distance(state.forks, entry.version, (trainer.branch, trainer.number))
    return trainer.number - entry.version[1]


def _give_back(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    books = state.books
    for ordinal in trainer.batch:
        if ordinal < len(books.entries) and books.entries[ordinal].state == LEASED:
            books = books.wait(ordinal)
            books = books._replace(taken=tuple(o for o in books.taken if o != ordinal))
    after = _seat(state._replace(books=books), who, trainer._replace(phase=LEASE, batch=()))
    yield Move(Step(who, "give_back", trainer.batch, "corrupt payload"), False, after)


def _train(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    batch, history = trainer.batch, trainer.history
    step = Step(who, "train", batch)
    if killers := set(batch) & set(setting.poisonous):
        known = [o for o in killers if o < len(state.books.entries)]
        if who == "trainer" and any(state.books.entries[o].poison >= MAX_POISON for o in known):
            yield Move(step, False, Violation(f"ordinals {batch} kill one trainer more than {MAX_POISON}, and so on"))
        else:
            yield Move(step._replace(how="it kills the trainer"), False, _seat(state, who, None))
        return
    if who == "trainer" and set(batch) & set(history):
        yield Move(step, False, Violation(f"ordinals {batch} are trained twice on one lineage, {history} before"))
        return
    since, history = tuple(sorted({*trainer.since, *batch})), tuple(sorted((*history, *batch)))
    trained = trainer._replace(phase=ADVANCE, number=trainer.number + 1, batch=(), since=since, history=history)
    yield Move(step, False, _seat(state, who, trained))


def _advance(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    books = state.books._replace(trained=trainer.number)
    if trainer.number > state.books.trained:
        books = books._replace(taken=())
    after = _seat(state._replace(books=books), who, trainer._replace(phase=LEASE))
    yield Move(Step(who, "advance", (trainer.branch, trainer.number)), False, after)


def _checkpoint(state: State, trainer: Trainer) -> State:
    """The rename: from here on it is durable."""
    checkpoint = Checkpoint(trainer.branch, trainer.number, trainer.history)
    return state._replace(checkpoints=tuple(sorted({*state.checkpoints, checkpoint})))


def _commit(setting: Setting, state: State, who: str, trainer: Trainer) -> Iterator[Move[State]]:
    books = state.books
    if setting.rules.own_ledger:
        books = books._replace(entries=_with_gaps(books, trainer.history))
        for ordinal in trainer.history:
            books = _consume(books, ordinal)
    else:
        for ordinal in trainer.since:
            if ordinal < len(books.entries) and books.entries[ordinal].state == LEASED:
                books = _consume(books, ordinal)
    committed = trainer._replace(phase=LEASE, since=())
    yield Move(Step(who, "commit", trainer.since), False, _seat(state._replace(books=books), who, committed))


Phase = Callable[[Setting, State, str, Trainer], Iterator[Move[State]]]
PHASES: dict[str, Phase] = {
    BOOT: _recover,
    LEASE: _lease,
    GIVE_BACK: _give_back,
    TRAIN: _train,
    ADVANCE: _advance,
    COMMIT: _commit,
}
WORDS = {LEASE: "lease", GIVE_BACK: "give_back", ADVANCE: "advance", COMMIT: "commit"}
"""Phase -> the word of its call."""
