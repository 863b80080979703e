"""Adding what was foreseen, in the pause, by several threads: each waits for memory, and the engine's cores are idle.

The changes are cut into equal shares, within a run where need be. Words of two shares are never the same, and a kernel
holds no lock of Python's. The threads are there before the pause begins, and end with it.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier

from weightsync import diff, foresight
from weightsync.foresight import Run

LEAST_SHARE = 1 << 16
"""Changes of a share; of fewer, handing them to a thread takes as long as adding them."""

MOST_THREADS = 4
"""So many ask for about all that a machine's memory gives, and other ranks of the engine add at the same time."""

_DEADLINE_S = 60.0
"""For threads to begin, and to end what takes milliseconds: a machine that is slower than that does nothing else."""


class Adders:
    """The runs of one ticket, and the threads that will add them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """Start the threads. Raises threading.BrokenBarrierError if they do not begin."""
        self._runs = runs
        changes = sum(run.places.size for run in runs)
        threads = min(MOST_THREADS, len(os.sched_getaffinity(0))) if diff.HAVE_NUMBA else 1  # numpy holds the lock
        self._shares = list(cut(runs, max(1, min(threads, changes // LEAST_SHARE))))
        for run in runs:
            foresight.add(_part(run, 0, 0))  # nothing; but numba has its kernel from here on
        others = len(self._shares) - 1
        self._helpers = ThreadPoolExecutor(max(1, others), thread_name_prefix="weightsync-add")
        begun = Barrier(others + 1)  # a thread that waits here takes no second call, so that there is one for each
        for _ in range(others):
            self._helpers.submit(begun.wait, _DEADLINE_S)
        begun.wait(_DEADLINE_S)

    def add(self) -> bool:
        """Add all, once; False, with every word as it was, if a word is not the one that was foreseen.

        Raises:
            RuntimeError: a thread does not end.
            Exception: what a thread raised. In both cases nobody knows which words were added to.
        """
        helping = [self._helpers.submit(_add, share) for share in self._shares[1:]]
        try:
            same = _add(self._shares[0])
        finally:  # whatever happened here: nothing may be written after this
            late = wait(helping, _DEADLINE_S).not_done
            self._helpers.shutdown(wait=False)
        if late:
            raise RuntimeError(f"{len(late)} threads that add have not ended after {_DEADLINE_S:g} s more")
        if all([same, *(one.result() for one in helping)]):
            return True
        foresight.subtract(self._runs)
        return False


def cut(runs: Sequence[Run], shares: int) -> Iterator[list[Run]]:
    """The runs in so many shares of equally many changes, in their order."""
    changes, at, left = sum(run.places.size for run in runs), 0, list(runs)
    for i in range(shares):
        share: list[Run] = []
        end = changes * (i + 1) // shares
        while at < end:
            run = left.pop(0)
            here = min(run.places.size, end - at)
            share.append(_part(run, 0, here))
            if here < run.places.size:
                left.insert(0, _part(run, here, run.places.size))
            at += here
        yield share


def _part(run: Run, first: int, last: int) -> Run:
    """Some of a run's changes; their gain is not known."""
    words, places, expected, differences, _ = run
    return Run(words, places[first:last], expected[first:last], differences[first:last], 0)


def _add(share: list[Run]) -> bool:
    """Add all of it in any case: what is taken back is everything."""
    same = [foresight.add(run) for run in share]
    return all(same)
