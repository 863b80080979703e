"""Changes in equal shares: each in one of them, cut within a run; the threads are there before, and end."""

import gc
import os
import threading

import numpy as np
import pytest

from weightsync import adders, diff
from weightsync.adders import Adders, cut
from weightsync.foresight import Run
from weightsync.layout import WORD_DTYPE

U16 = WORD_DTYPE[2]


def run_of(size: int) -> Run:
    places = np.arange(size, dtype=np.int32) * 3
    return Run(np.zeros(3 * size + 1, U16), places, np.zeros(size, U16), np.arange(1, size + 1).astype(U16), 0)


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("weightsync-add")]


@pytest.mark.parametrize("shares", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sizes", [[], [1], [10, 1, 1], [3, 400, 5], [50] * 9])
def test_shares_are_equal_and_together_all(sizes: list[int], shares: int) -> None:
    runs = [run_of(size) for size in sizes]
    found = list(cut(runs, shares))
    counts = [sum(part.places.size for part in share) for share in found]
    assert len(found) == shares
    assert max(counts) - min(counts) <= 1
    for i in (1, 2, 3):  # places, expected, differences
        parts = [part[i] for share in found for part in share]
        assert np.concatenate([*parts, []]).tolist() == np.concatenate([*(run[i] for run in runs), []]).tolist()


def test_threads_are_there_before_and_end_with_the_addition_or_with_what_was_never_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not diff.HAVE_NUMBA:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(adders, "LEAST_SHARE", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    for used in (True, False):
        runs = [run_of(31), run_of(5)]
        made = Adders(runs)
        threads = helpers()
        assert len(threads) == 2
        if used:
            assert made.add()
            assert [run.words[run.places].tolist() for run in runs] == [run.differences.tolist() for run in runs]
        del made
        gc.collect()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_few_changes_and_one_core_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_of(50)]
    assert Adders(runs).add()
    monkeypatch.setattr(adders, "LEAST_SHARE", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    made = Adders([run_of(50)])
    assert not helpers()
    assert made.add()
