"""The trainer's side of the replay buffer, used by rank 0: recover -> lease ... -> advance ... -> ledger -> commit."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock

from buffer import staleness
from buffer.answers import Entry, Leased, LeftGroup, NotReady, StaleGroup
from buffer.attached import Attached
from buffer.batches import fence
from buffer.books import Spent
from buffer.config import BufferConfig, StalenessConfig
from buffer.entries import entry_of, in_parts, left_of
from buffer.errors import BudgetTooSmall, CorruptPayload, UnknownSchema
from buffer.lineage import Ledger, asked_of, ledger_of
from buffer.payloads import Blob, Payloads
from buffer.store import Batch, Done, Store
from buffer.trajectory import Group


class TrainerSide(Attached):
    """See `buffer.replay_buffer.ReplayBuffer`."""

    def __init__(
        self, store: Store, payloads: Payloads, config: BufferConfig, staleness: StalenessConfig | None = None
    ) -> None:
        super().__init__(store, payloads, config, staleness)
        self._lineage_lock = Lock()
        self._lineage = Ledger()
        self._steps: dict[int, int] = {}
        """ordinal -> step, of what this trainer has leased and not given back since the last commit."""
        self._spent: dict[int, Spent] = {}
        """ordinal -> its tokens, of the same."""
        self._limit: int | None = None
        self._branch = 0
        self._nonces: dict[int, str] = {}
        """branch -> the nonce that this trainer opened it with."""

    def recover(
        self, nonce: str, ledger: Ledger | None, *, number: int, limit: int, groups_per_version: int, seen: int = 0
    ) -> int:
        """Open a new branch at the checkpoint's version, and make the buffer agree with the checkpoint.

        Args:
            nonce: drawn once per start of the trainer: a repeat opens no second branch.
            ledger: of the newest complete checkpoint, by (branch, number); None: there is none.
            number: the version that the trainer starts from.
            seen: the highest branch that anybody else is known to have seen, for example the log of weights.
        Returns:
            The new branch.
        Raises:
            BudgetTooSmall: buffer.max_bytes cannot hold one version's groups.
        """
        self._check_budget(groups_per_version)
        ledger = ledger or Ledger()
        window = staleness.window(limit, groups_per_version)
        done = self._store.recover(
            nonce, ledger, number, limit, groups_per_version, window, max(seen, self._branch), 0, self._limits
        )
        with self._lineage_lock:
            self._lineage, self._steps, self._spent = ledger, {}, {}
            self._limit, self._branch = limit, done.branch
            self._nonces[done.branch] = nonce
        self._delete(done.trash)
        self._drop_evaluation(done.evaluation, "", done.branch)
        return done.branch

    def lease(
        self,
        branch: int,
        number: int,
        step: int,
        count: int,
        *,
        after: NotReady | None = None,
        wait_s: float = 0.0,
    ) -> Leased | NotReady:
        """The batch of a step: `count` groups, or none. The same (branch, step) again answers the same groups.

        Groups past the limit leave here, whether or not there is a batch, and are reported in `left`.
        Args:
            number: the trainer's own version; a ledger behind it advances first.
            after, wait_s: the refusal before this one: block until something has changed since, or for so long, and
                lease then. The wait for the last missing group and its lease are one round trip.
        Raises:
            Fenced, Behind: see `buffer.errors`.
        """
        limit = self._known_limit()
        wait_ms = round(self._staleness.wait_deadline_s * 1000) if self._staleness.policy == "wait" else 0
        left: list[LeftGroup] = []
        hint = self._await_all_but_one(after, wait_s) if after is not None and wait_s > 0 else None
        while True:
            batch = self._store.lease(
                *(branch, self._nonce(branch), number, step, count),
                *(staleness.oldest_allowed(number, limit), wait_ms, self._limits, hint),
            )
            hint = None
            self._check(batch, branch, f"lease for step {step}")
            self._delete(batch.trash)
            left += [left_of(one, number) for one in batch.left]
            if batch.status != "ok":
                return self._not_ready(batch, count, tuple(left))
            again = self._trained_before(batch, step)
            if not again:
                break
            # Redis lost its tail and offers what this lineage has trained. It stays leased until the next commit
            # closes it; each round takes some out, so the rounds end.
            done = self._store.give_back(branch, self._nonce(branch), again, "trained", self._limits)
            self._check(done, branch, "lease")
        with self._lineage_lock:
            self._steps.update((one.ordinal, step) for one in batch.taken)
            self._spent.update((one.ordinal, one.card.index.spent) for one in batch.taken)
        return Leased(tuple(entry_of(one, number, batch.now_ms) for one in batch.taken), tuple(left))

    def fetch(self, entry: Entry) -> Group:
        """The group of an entry. Any rank may fetch; each decodes its own.

        Raises:
            CorruptPayload: the payload is missing, foreign or damaged: give it back with reason corrupt_payload.
            UnknownSchema: it was written by another major version.
        """
        return self._group_of(entry, self._payloads.get(entry.key, entry.num_bytes))

    def fetch_each(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Group | CorruptPayload | UnknownSchema]]:
        """The group of each entry, or why there is none, in their order. Asked for together, a bounded number of bytes
        at a time: one round trip for many small groups."""
        for part in in_parts(entries):
            blobs = self._payloads.get_each({entry.key: entry.num_bytes for entry in part})
            for entry in part:
                try:
                    group: Group | CorruptPayload | UnknownSchema = self._group_of(entry, blobs.pop(entry.key))
                except (CorruptPayload, UnknownSchema) as error:
                    group = error
                yield entry, group

    def _group_of(self, entry: Entry, blob: Blob | None) -> Group:
        group = self._parsed(blob, entry.num_bytes, entry.xxh3, entry.gid)
        if group.gid != entry.gid:
            raise CorruptPayload(f"the payload of group {entry.gid} holds group {group.gid}.")
        return group

    def give_back(self, branch: int, ordinals: Iterable[int], reason: str | None = None) -> None:
        """Return leased groups: untouched (None) to ready, `corrupt_payload` to waiting, any other reason to filtered.

        Raises:
            Fenced, Behind: see `buffer.errors`.
        """
        ordinals = tuple(ordinals)
        done = self._store.give_back(branch, self._nonce(branch), ordinals, reason or "", self._limits)
        self._check(done, branch, "give_back")
        with self._lineage_lock:
            for ordinal in ordinals:
                self._steps.pop(ordinal, None)
                self._spent.pop(ordinal, None)
        self._delete(done.trash)

    def advance(self, branch: int, number: int, *, limit: int, groups_per_version: int) -> None:
        """A version was trained, published or not: lets workers start the groups of the next.

        Raises:
            Fenced: a newer branch, or a higher number of this one, is known. Behind: see `buffer.errors`.
            BudgetTooSmall: buffer.max_bytes cannot hold one version's groups.
        """
        self._check_budget(groups_per_version)
        window = staleness.window(limit, groups_per_version)
        done = self._store.advance(branch, self._nonce(branch), number, limit, groups_per_version, window)
        self._check(done, branch, f"advance to {number}")
        with self._lineage_lock:
            self._limit = limit

    def ledger(
        self, branch: int, number: int, trained: Iterable[int], masked: Mapping[str, int] | None = None
    ) -> Ledger:
        """What a checkpoint at `number` keeps of the buffer.

        Args:
            trained: the ordinals trained on since the last commit or recover (older ones do no harm).
            masked: data source -> sampled tokens of these that were kept out of the loss.
        Raises:
            Fenced, Behind: see `buffer.errors`.
        """
        trained = tuple(trained)
        with self._lineage_lock:
            base, leased = self._lineage, dict(self._spent)
        books = self._store.lineage(*asked_of(base, trained))
        status = fence(books, branch, self._nonce(branch))
        self._check(Done(status, books.branch, books.trained), branch, "ledger")
        return ledger_of(books, base, number, trained, masked or {}, leased)

    def commit(self, branch: int, ledger: Ledger) -> None:
        """After the checkpoint's rename: closes all that its ledger names. A repeat does nothing.

        Raises:
            Fenced, Behind: see `buffer.errors`.
        """
        done = self._store.commit(branch, self._nonce(branch), ledger)
        self._check(done, branch, "commit")
        with self._lineage_lock:
            if ledger.watermark >= self._lineage.watermark:
                self._lineage = ledger
                self._steps = {o: step for o, step in self._steps.items() if not ledger.names(o)}
                self._spent = {o: self._spent[o] for o in self._steps if o in self._spent}
        self._delete(done.trash)

    def _await_all_but_one(self, refusal: NotReady, wait_s: float) -> tuple[str, float] | None:
        """What the lease itself is to wait for; None: it need not wait."""
        last, missing = refusal.last_hint, refusal.num_missing
        if missing == 1:
            return last, wait_s
        until = time.monotonic() + wait_s
        waited = self._store.wait_for_hint(last, None, wait_s, missing - 1)
        left_s = until - time.monotonic()
        # The last one may have come in together with the one before it: no other would follow.
        is_complete = waited.num_ready >= missing
        return (waited.last, left_s) if waited.ended and left_s > 0 and not is_complete else None

    def _nonce(self, branch: int) -> str:
        with self._lineage_lock:
            return self._nonces.get(branch, "")

    def _trained_before(self, batch: Batch, step: int) -> list[int]:
        with self._lineage_lock:
            return [
                one.ordinal
                for one in batch.taken
                if self._steps.get(one.ordinal, step) != step or self._lineage.names(one.ordinal)
            ]

    def _not_ready(self, batch: Batch, count: int, left: tuple[LeftGroup, ...]) -> NotReady:
        have = f"ready={batch.num_ready} in_flight={batch.num_in_flight} waiting={batch.num_waiting}"
        if batch.status == "held":
            oldest = max(age for _, age, _ in batch.held_by) / 1000
            detail = (
                f"stale_groups: waits for {len(batch.held_by)} last-chance groups in flight, the oldest for "
                f"{oldest:.0f} s; {have}"
            )
        else:
            detail = f"need {count} groups, have {have}"
            if batch.num_ready >= count:
                detail += "; in order of ordinals, so a smaller one is not ready yet"
            if batch.bytes_refused:
                detail += "; buffer.max_bytes is used up, so no new group starts before a checkpoint"
        waiting_for = tuple(StaleGroup(ordinal, age / 1000, worker) for ordinal, age, worker in batch.held_by)
        missing = 1 if batch.status == "held" else max(1, count - batch.num_ready)
        return NotReady(detail, left, waiting_for, batch.last_hint, batch.bytes_refused, missing)

    def _known_limit(self) -> int:
        with self._lineage_lock:
            if self._limit is None:
                self._limit = int(self._store.record().get("limit", "0"))
            return self._limit

    def _check_budget(self, groups_per_version: int) -> None:
        need = groups_per_version * self._config.max_group_bytes
        if self._config.max_bytes < need:
            raise BudgetTooSmall(
                f"buffer.max_bytes = {self._config.max_bytes} is less than the {groups_per_version} groups of one "
                "version at "
                f"buffer.max_group_bytes = {self._config.max_group_bytes} each, {need} in all: a batch could never "
                "be complete. "
                "Raise the first or lower the second."
            )

    def _drop_evaluation(self, label: str, opened: str, branch: int) -> None:
        """Overridden where evaluations are known."""
