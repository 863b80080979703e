"""The transition table says what each word may do, and no rule does anything else."""

import inspect
import random

from buffer import Claim
from buffer.books import CLOSED, STATES, Books
from buffer.ledger import TRANSITIONS, counts, state_of
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for


def moves(before: Books, after: Books) -> set[tuple[str | None, str | None]]:
    top = max(before.next_ordinal, after.next_ordinal)
    pairs = {(state_of(before, o), state_of(after, o)) for o in range(top)}
    return {(a, b) for a, b in pairs if a != b}


def test_every_word_names_a_rule_of_the_books() -> None:
    for rule, allowed in TRANSITIONS.values():
        assert next(iter(inspect.signature(rule).parameters)) == "books"
        assert {state for move in allowed for state in move} <= {None, *STATES}


class History:
    """A run in which any word may come next."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.run = BufferRun(None, max_stale=1, policy="drop").recover(limit=1, per_version=2)
        self.held = self.run.claims()
        self.trained: list[int] = []

    def act(self, word: str) -> None:
        run = self.run
        leased = list(run.buffer._store.books().leased)
        if word == "reserve":
            self.held.extend(run.claims())
        elif word in ("put", "filter", "release") and self.held:
            self.end(word, self.held.pop())
        elif word == "sweep":
            run.passes(61)
            run.buffer.sweep()
            self.held.clear()
        elif word == "lease":
            run.try_lease()
        elif word == "give_back":
            run.buffer.give_back(run.branch, leased[:1], self.draw.choice([None, "corrupt_payload", "zero_variance"]))
        elif word == "advance":
            self.trained.extend(leased)
            run.number += 1
            run.advance()
        elif word == "commit":
            run.checkpoint(self.trained)
        elif word == "recover":
            ledger = run.checkpoint(self.trained, commit=False)
            run.recover(limit=1, per_version=2, ledger=ledger, number=run.number)
            self.held.clear()

    def end(self, word: str, claim: Claim) -> None:
        run = self.run
        if word == "release":
            run.buffer.fail(claim, "reward_failed")
        else:
            made = group_for(claim, run.version(max(0, run.number - self.draw.randrange(3))))
            run.buffer.put(claim, made, filtered="zero_variance" if word == "filter" else None)


def test_a_random_history_makes_only_the_moves_of_the_table() -> None:
    words = [word for word in TRANSITIONS if word not in ("renew", "evaluate")]
    for seed in range(20):
        history = History(seed)
        for _ in range(40):
            word = history.draw.choice(words)
            before = history.run.buffer._store.books()
            history.act(word)
            after = history.run.buffer._store.books()
            assert moves(before, after) <= TRANSITIONS[word][1], f"seed {seed}, {word}"
            assert sum(counts(after)[state] for state in STATES) == counts(after)["next_ordinal"]
        history.run.audit()


def test_a_closed_ordinal_is_remembered_by_kind_until_a_commit() -> None:
    run = BufferRun(None).recover(limit=0, per_version=2)
    claim = run.claim()
    run.buffer.put(claim, group_for(claim, run.version()), filtered="zero_variance")
    assert state_of(run.buffer._store.books(), 0) == "filtered"
    run.checkpoint([])
    books = run.buffer._store.books()
    assert (books.watermark, books.below["filtered"]) == (1, 1)
    assert all(not books.closed[kind] for kind in CLOSED), "the sets hold what was closed since the last commit only"
