"""What stands between a caller and the ledger in replays of model traces: calls and payloads that get lost."""

from typing import Any

from buffer.errors import ServerLost
from buffer.payloads.memory import MemoryPayloads
from buffer.store import Store

REQUEST, REPLY = "request", "reply"


class CutStore:
    """A store as one process sees it. `cut(word, what)`: its next call of that word never arrives (REQUEST), or is done
    and never answered (REPLY)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cut: tuple[str, str] | None = None

    def cut(self, word: str, what: str) -> None:
        self._cut = (word, what)

    def __getattr__(self, name: str) -> Any:  # whatever the store has
        inner = getattr(self._store, name)
        if self._cut is None or self._cut[0] != name:
            return inner

        def call(*arguments: Any) -> Any:
            assert self._cut is not None
            (_, what), self._cut = self._cut, None
            if what == REPLY:
                inner(*arguments)
            raise ServerLost(f"the {what} of {name} is lost")

        return call


class LosingPayloads(MemoryPayloads):
    """Payloads that go back to what was durable. `is_deaf`: what is written now was acknowledged before."""

    is_deaf = False

    def put(self, key: str, blob: bytes) -> None:
        if not self.is_deaf:
            super().put(key, blob)

    def save(self) -> dict[str, tuple[float, bytes]]:
        return dict(self._blobs)

    def lose_tail(self, saved: dict[str, tuple[float, bytes]]) -> None:
        self._blobs = dict(saved)
