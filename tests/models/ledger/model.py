"""The ledger model as a whole: its moves, its symmetry, what must hold, and what counts as progress."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buffer.books import CONSUMED, LEASED, READY
from tests.models.explorer import Move, Step
from tests.models.ledger.state import BOOT, LEASE, Books, Checkpoint, Setting, State, Trainer
from tests.models.ledger.trainer import trainer_moves
from tests.models.ledger.workers import worker_moves


class LedgerModel:
    """See `tests.models.explorer.Model`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        nobody = (None,) * setting.workers
        start = (Checkpoint(0, 0, ()),)
        self.initial = State(Books(), ((0, 0),), nobody, Trainer(), None, start, None, setting.faults)

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Workers, trainers, Redis."""
        yield from worker_moves(self.setting, state)
        yield from trainer_moves(self.setting, state)
        if state.faults.tails and state.saved is None:
            yield Move(Step("redis", "durable"), True, state._replace(saved=state.books))
        elif state.faults.tails and state.saved is not None and state.saved != state.books:
            lost = state.spend("tails")._replace(books=state.saved, saved=None)
            yield Move(Step("redis", "lose tail"), True, lost)

    def canonical(self, state: State) -> State:
        """Tokens renumbered from 1 for each ordinal, in order; workers sorted: who of them is who says nothing."""
        numbers = _renumbering(state)
        workers = state.workers
        if numbers is not None:
            workers = tuple(w and w._replace(token=numbers[w.ordinal][w.token]) for w in workers)
            saved = None if state.saved is None else _renumbered(state.saved, numbers)
            state = state._replace(books=_renumbered(state.books, numbers), saved=saved)
        state = _with_nonces_renumbered(state)
        if len(workers) > 1:
            workers = tuple(sorted(workers, key=lambda w: w or ()))
        return state._replace(workers=workers) if workers != state.workers else state

    def problem(self, state: State) -> str | None:
        """What this state breaks."""
        trainer, has_lost_tail = state.trainer, state.faults.tails < self.setting.faults.tails
        for ordinal, entry in enumerate(state.books.entries):
            if entry.state in (READY, LEASED):
                if entry.payload == 0 and not has_lost_tail:
                    return f"ordinal {ordinal} is {entry.state} but its payload is gone"
                if entry.payload not in (0, entry.token):
                    return f"ordinal {ordinal} is {entry.state} but its payload is another writer's"
            leads = trainer.phase != BOOT and trainer.branch == state.books.branch
            if leads and entry.state == CONSUMED and ordinal not in trainer.history:
                return f"ordinal {ordinal} counts as consumed but the surviving lineage never trained it"
        return None

    def is_goal(self, state: State) -> bool:
        """The trainer has trained all its versions, and it is the ledger's."""
        trainer = state.trainer
        return (
            trainer.phase == LEASE and trainer.number >= self.setting.versions and trainer.branch == state.books.branch
        )


Numbers = Sequence[Mapping[int, int]]
"""By ordinal: token -> its place among those in use."""


def _with_nonces_renumbered(state: State) -> State:
    """By their first appearance. Mostly the branch tells them apart, and then this makes no states."""
    holders = (state.books, state.saved, state.trainer, state.old)
    numbers: dict[int, int] = {0: 0}
    for holder in holders:
        if holder is not None:
            numbers.setdefault(holder.nonce, len(numbers))
    if all(old == new for old, new in numbers.items()):
        return state
    renamed: tuple[Any, ...] = tuple(holder and holder._replace(nonce=numbers[holder.nonce]) for holder in holders)
    return state._replace(**dict(zip(("books", "saved", "trainer", "old"), renamed, strict=True)))


def _renumbered(books: Books, numbers: Numbers) -> Books:
    entries = (
        entry._replace(token=number[entry.token], payload=number[entry.payload])
        for entry, number in zip(books.entries, numbers, strict=False)
    )
    return books._replace(entries=tuple(entries))


def _renumbering(state: State) -> Numbers | None:
    """None: they are numbered like that already."""
    used: list[set[int]] = []

    def note(ordinal: int, *tokens: int) -> None:
        while len(used) <= ordinal:
            used.append({0})
        used[ordinal].update(tokens)

    for books in (state.books, state.saved):
        for ordinal, entry in enumerate(books.entries if books else ()):
            note(ordinal, entry.token, entry.payload)
    for worker in state.workers:
        if worker is not None:
            note(worker.ordinal, worker.token)
    if all(max(tokens) < len(tokens) for tokens in used):
        return None
    return [{token: place for place, token in enumerate(sorted(tokens))} for tokens in used]
