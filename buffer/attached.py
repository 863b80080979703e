"""What every side of the replay buffer holds: a store, the homes of payloads, and the settings."""

from collections.abc import Iterable

from buffer import wire
from buffer.config import BufferConfig, StalenessConfig
from buffer.errors import Behind, CorruptPayload, Fenced
from buffer.payloads import Blob, Payloads
from buffer.store import Batch, Done, Limits, Store
from buffer.trajectory import Group


class Attached:
    """Base of the worker's and the trainer's side."""

    def __init__(
        self, store: Store, payloads: Payloads, config: BufferConfig, staleness: StalenessConfig | None = None
    ) -> None:
        self.run = store.run
        self._store = store
        self._payloads = payloads
        self._config = config
        self._staleness = staleness or StalenessConfig()
        self._limits = Limits(
            claim_ms=round(config.claim_s * 1000),
            max_attempts=config.max_attempts,
            max_bytes=config.max_bytes,
            max_group_bytes=config.max_group_bytes,
            max_dead_bytes=config.max_dead_bytes,
            max_stale=self._staleness.max_stale,
            max_draws=config.max_draws,
            on_stale=self._staleness.on_stale,
            order=self._staleness.order,
        )

    def _delete(self, keys: Iterable[str]) -> None:
        """Unlink payloads that a transition put into the trash, then say so. A death in between is for sweep to
        finish."""
        if keys := tuple(keys):
            self._payloads.delete(keys)
            self._store.forget(keys)

    def _read(self, key: str, num_bytes: int, xxh3: str, what: str) -> Group:
        """The group under `key`, if it is what was put there.

        Raises:
            CorruptPayload: it is missing, foreign or damaged; UnknownSchema: written by another major version.
        """
        return self._parsed(self._payloads.get(key, num_bytes), num_bytes, xxh3, what)

    def _parsed(self, blob: Blob | None, num_bytes: int, xxh3: str, what: str) -> Group:
        if blob is None:
            raise CorruptPayload(f"the payload of group {what} is gone.")
        if len(blob) != num_bytes:
            found = f"{len(blob)} bytes" if len(blob) < num_bytes else "more bytes"
            raise CorruptPayload(f"the payload of group {what} has {found}, its index says {num_bytes}.")
        # The size is the index's word, and nothing in the buffer is larger than its budget.
        most = min(max(self._config.max_group_bytes, num_bytes), self._config.max_bytes)
        raw = wire.inflate(blob, max_bytes=most)
        if (found := wire.xxh3(raw)) != xxh3:
            raise CorruptPayload(f"the payload of group {what} has xxh3 {found}, its index says {xxh3}.")
        return wire.parse(raw)

    def _check(self, answer: Done | Batch, branch: int, what: str) -> None:
        if answer.status == "fenced":
            raise Fenced(
                f"{what} of branch {branch}: the ledger of run {self.run!r} is at branch {answer.branch}, version "
                f"{answer.trained}. Another trainer has taken over, on its own branch or (after Redis lost its latest "
                "writes) under this number; this one must exit and not be restarted."
            )
        if answer.status == "behind":
            raise Behind(
                f"{what} of branch {branch}: the ledger of run {self.run!r} knows branches up to {answer.branch} "
                "only. Redis "
                "lost its latest writes; resume from the newest checkpoint, which opens a new branch."
            )
