"""Boxes in one run: what is added is exact, is told to the digest, and can be taken back to the last bit."""

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.weights import random_words
from weightsync import adders, engine_runs, foresight
from weightsync.address_map import AddressMap, Box
from weightsync.digest import MASK, digest
from weightsync.engine_runs import Runs, apart
from weightsync.engine_words import to_engine, unsigned
from weightsync.errors import CorruptDelta
from weightsync.foresight import Run
from weightsync.layout import AddressTable, Bucket, Segment, TensorSpec, Words
from weightsync.planes import Scratch, encode_planes
from weightsync.ticket import Staged


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads, whatever the machine has, for changes as few as here."""
    monkeypatch.setattr(adders, "LEAST_SHARE", 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32"}
SIZE, CUT = 40_000, 15_000
"""Words of a tensor, more than the kernels work on at once; two boxes hold it, in storages of their own."""


class Engine:
    """A tensor in two boxes, the first one behind 7 words of something else, and a step of it in three buckets."""

    def __init__(self, width: int, fraction: float = 0.6) -> None:
        rng = np.random.default_rng(width)
        self.spec = TensorSpec("w", DTYPES[width], (SIZE,), 1 << 10)  # less than what lies before it in a bucket
        self.old = random_words(rng, SIZE, width)
        self.new = self.old.copy()
        some = rng.random(SIZE) < fraction
        self.new[some] = random_words(rng, int(some.sum()), width)
        self.other = random_words(rng, 7, width)
        self.storages = [to_engine(np.concatenate([self.other, self.old[:CUT]]), torch.device("cpu"))]
        self.storages.append(to_engine(self.old[CUT:].copy(), torch.device("cpu")))
        self.boxes = [
            Box("w", 0, 7, ((CUT, 1, 1),), self.storages[0]),
            Box("w", CUT, 0, ((SIZE - CUT, 1, 1),), self.storages[1]),
        ]
        self.runs = Runs(AddressMap(self.boxes, {}), self.specs())

    def specs(self) -> dict[str, TensorSpec]:
        return {"w": self.spec, "of another rank": TensorSpec("of another rank", self.spec.dtype, (5_000,), 1 << 21)}

    def staged(self) -> list[Staged]:
        found = []
        before = Segment("of another rank", 0, 5_000)
        for i, (low, high) in enumerate([(0, 9_000), (9_000, 31_000), (31_000, SIZE)]):
            bucket = Bucket(i, 0, self.spec.width, (before, Segment("w", low, high - low)))
            table = AddressTable(np.array([bucket.num_words], np.int64), np.zeros(1, np.int64))
            pair = [np.concatenate([self.old[:5_000], words[low:high]]) for words in (self.old, self.new)]
            planes = encode_planes(pair[0], pair[1], table, Scratch())
            found.append(Staged(bucket, planes._replace(escaped=planes.escaped.copy(), gaps=planes.gaps.copy()), None))
        return found

    def words(self) -> Words:
        assert np.array_equal(unsigned(self.storages[0])[:7], self.other), "words beside the box"
        return np.concatenate([unsigned(self.storages[0])[7:], unsigned(self.storages[1])])


@pytest.mark.parametrize("width", [1, 2, 4])
def test_what_is_added_is_exact_and_the_gain_is_the_digests(kernels: str, width: int) -> None:
    engine = Engine(width)
    added = engine.runs.add(engine.staged())
    assert np.array_equal(engine.words(), engine.new)
    start = engine.spec.offset
    assert sum(one.gain for one in added) & MASK == (digest(engine.new, start) - digest(engine.old, start)) & MASK
    assert sum(one.last - one.first for one in added) == int((engine.old != engine.new).sum())
    assert {one.piece.box for one in added} == set(engine.boxes)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_what_is_taken_back_was_never_there(kernels: str, width: int) -> None:
    engine = Engine(width)
    engine.runs.add(engine.staged())
    engine.runs.take_back()
    assert np.array_equal(engine.words(), engine.old)
    engine.runs.take_back()
    assert np.array_equal(engine.words(), engine.old), "only once"
    engine.runs.add(engine.staged())
    engine.runs.keep()
    engine.runs.take_back()
    assert np.array_equal(engine.words(), engine.new), "what was kept stays"


def test_a_change_outside_of_a_storage_is_refused_and_what_went_before_can_be_taken_back(kernels: str) -> None:
    engine = Engine(2)
    short = Box("w", CUT, 0, ((SIZE - CUT, 1, 1),), engine.storages[1][:-1].clone())
    engine.runs = Runs(AddressMap([engine.boxes[0], short], {}), engine.specs())
    with pytest.raises(CorruptDelta, match="outside its storage"):
        engine.runs.add(engine.staged())
    assert not np.array_equal(engine.words()[:CUT], engine.old[:CUT])
    engine.runs.take_back()
    assert np.array_equal(engine.words(), engine.old)


def test_words_that_changed_meanwhile_are_not_called_what_they_were(kernels: str) -> None:
    engine = Engine(2)
    engine.runs.add(engine.staged())
    at = int(np.flatnonzero(engine.old != engine.new)[-1])
    unsigned(engine.storages[1])[at - CUT] ^= 1
    with pytest.raises(RuntimeError, match="words of w changed"):
        engine.runs.take_back()


def test_a_run_that_was_interrupted_cannot_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(2)

    def interrupted(*_: object) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine_runs, "_add", interrupted)
        with pytest.raises(MemoryError):
            engine.runs.add(engine.staged())
    with pytest.raises(RuntimeError, match="interrupted"):
        engine.runs.take_back()
    engine.runs.add([])
    engine.runs.take_back()


def boxes_of(storage: Tensor, *places: tuple[int, tuple[tuple[int, int, int], ...]]) -> list[Box]:
    return [Box("w", 0, at, dims, storage) for at, dims in places]


def test_only_boxes_whose_words_are_in_no_other_box_are_added_to() -> None:
    storage, other = torch.zeros(100, dtype=torch.int16), torch.zeros(100, dtype=torch.int16)
    run = ((10, 1, 1),)
    first, second, third, far = boxes_of(storage, (0, run), (5, run), (15, run), (40, run))
    strided, inside = boxes_of(storage, (60, ((4, 10, 10),)), (75, ((2, 1, 1),)))
    (elsewhere,) = boxes_of(other, (0, run))
    found = apart(AddressMap([far, first, second, third, strided, inside, elsewhere], {}))
    assert set(found) == {third, far, elsewhere}
    assert not apart(AddressMap(boxes_of(storage, (0, ((50, 1, 1),)), (10, run), (30, run)), {})), (
        "one covers the others"
    )


@pytest.mark.parametrize("width", [1, 2, 4])
def test_what_was_foreseen_is_what_adding_does(kernels: str, width: int, many_threads: None) -> None:
    engine, other = Engine(width), Engine(width)
    staged = engine.staged()
    foreseen = engine.runs.foresee(staged, 1 << 30)
    assert foreseen is not None
    assert np.array_equal(engine.words(), engine.old), "nothing is written"
    added = engine.runs.add(staged, foreseen)
    assert np.array_equal(engine.words(), engine.new)
    assert [one[1:] for one in added] == [one[1:] for one in other.runs.add(other.staged())]
    engine.runs.take_back()
    assert np.array_equal(engine.words(), engine.old)
    assert engine.runs.foresee(staged, 1000) is None, "too large"


@pytest.mark.parametrize("share", range(4))
def test_what_did_not_come_true_in_any_share_is_worked_out_again(kernels: str, share: int, many_threads: None) -> None:
    engine = Engine(2)
    staged = engine.staged()
    foreseen = engine.runs.foresee(staged, 1 << 30)
    changes = np.flatnonzero(engine.old != engine.new)
    at = int(changes[changes.size * (2 * share + 1) // 8])
    unsigned(engine.storages[at >= CUT])[at - CUT if at >= CUT else at + 7] ^= 1
    engine.old[at] ^= 1
    added = engine.runs.add(staged, foreseen)
    start = engine.spec.offset
    now = engine.words()
    assert np.flatnonzero(now != engine.new).tolist() == [at]
    assert sum(one.gain for one in added) & MASK == (digest(now, start) - digest(engine.old, start)) & MASK
    engine.runs.take_back()
    assert np.array_equal(engine.words(), engine.old)


def test_adding_what_was_foreseen_may_be_interrupted_and_then_nobody_knows(
    kernels: str, monkeypatch: pytest.MonkeyPatch, many_threads: None
) -> None:
    """In whichever thread it happens."""
    engine = Engine(2)
    staged = engine.staged()
    foreseen = engine.runs.foresee(staged, 1 << 30)

    def interrupted(run: Run) -> bool:
        if run.words.size == SIZE - CUT:  # the last share has no other words
            raise MemoryError
        return True

    with monkeypatch.context() as patch:
        patch.setattr(foresight, "add", interrupted)
        with pytest.raises(MemoryError):
            engine.runs.add(staged, foreseen)
    with pytest.raises(RuntimeError, match="interrupted"):
        engine.runs.take_back()
