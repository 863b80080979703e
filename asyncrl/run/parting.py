"""The end of the ranks: once the work is done, or the first one has left, none stays for long."""

import time
from collections.abc import Callable, Sequence

from asyncrl.cluster import Child
from asyncrl.errors import WaitTimeout

WAITING = "supervisor waits for the ranks that are left"


class Parting:
    """Watches the ranks of one start."""

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`patience_s`: that ranks are waited for."""
        self._patience_s, self._clock = patience_s, clock
        self._since_s: float | None = None

    def overdue(self, ranks: Sequence[Child], *, is_complete: bool) -> dict[Child, WaitTimeout]:
        """Those that have not ended in time, each with what is to be said of it.

        Args:
            is_complete: rank 0 has said that all is saved; before that, time counts from the first end without an
                error.
        """
        codes = [rank.exit_code() for rank in ranks]
        if not is_complete and 0 not in codes:
            return {}
        now = self._clock()
        self._since_s = now if self._since_s is None else self._since_s
        if (waited_s := now - self._since_s) < self._patience_s:
            return {}
        ended = [rank.role for rank, code in zip(ranks, codes, strict=True) if code == 0]
        why = f"is still there; ended: {', '.join(ended) or 'none'}, all is saved: {'yes' if is_complete else 'no'}"
        return {
            rank: WaitTimeout(WAITING, waited_s, self._patience_s, f"{rank.role} {why}; its log is {rank.log}")
            for rank, code in zip(ranks, codes, strict=True)
            if code is None
        }
