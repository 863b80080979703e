"""Waiting for the ledger to change, inside the store: XREAD on the run's stream of hints, or a condition in memory."""

from buffer.store import Store


class Hints:
    """Wakes when something happened since the last call. A missed hint costs one wait, so re-check after the
    deadline."""

    def __init__(self, store: Store, kind: str | None = None) -> None:
        """kind: "ready" (a group was put), "room" (anything else that may admit or release somebody), None: both."""
        self._store = store
        self._kind = kind
        # Read before the caller's first attempt, so that nothing between that attempt and the wait is missed.
        self._last = store.hint()

    def wait(self, deadline_s: float, *, num_ready: int = 1) -> bool:
        """Whether the ledger changed within `deadline_s` seconds. Blocks; not to be shared by threads.

        Args:
            num_ready: groups that must come in before anything can change for the caller (NotReady.num_missing); any
                other change wakes it at once.
        Raises:
            ServerLost: the server did not answer for buffer.retry_s.
        """
        waited = self._store.wait_for_hint(self._last, self._kind, deadline_s, num_ready)
        self._last = waited.last
        return waited.ended

    __call__ = wait
