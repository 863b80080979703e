"""Whether the head of a cluster is still there, looked at from beside: its library says so in its own time, and then
ends the process with its own exit code."""

import threading
import time
from collections.abc import Callable

from asyncrl.cluster.address import why_unreachable

LOOK_S = 2.0


class HeadWatch:
    """Connects to the head now and then, in a thread: a connection to a machine that is gone takes seconds to fail."""

    def __init__(
        self,
        address: str,
        patience_s: float,
        *,
        lost: Callable[[], None] = lambda: None,
        look_s: float = LOOK_S,
        reach: Callable[[str], str | None] = why_unreachable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to look.

        Args:
            address: host:port.
            patience_s: seconds that the head may be away; it may be started again meanwhile.
            lost: called once, in the watch's thread, when the head counts as lost.
            reach: why it cannot be reached, None if it can.
        """
        self.address, self._patience_s, self._look_s, self._reach, self._clock = (
            address,
            patience_s,
            look_s,
            reach,
            clock,
        )
        self._lost, self._tell, self._closed = "", lost, threading.Event()
        threading.Thread(target=self._watch, name="watch the head", daemon=True).start()

    @property
    def why_lost(self) -> str:
        """Why the head counts as lost, empty as long as it does not. It does not come back from that."""
        return self._lost

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        seen_s = self._clock()
        while not self._lost and not self._closed.wait(self._look_s):
            why = self._reach(self.address)
            if why is None:
                seen_s = self._clock()
            elif (away_s := self._clock() - seen_s) >= self._patience_s:
                self._lost = f"{why}, for {away_s:.0f} s"
                self._tell()
