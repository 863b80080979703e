"""A trainer process in replays of model traces: the buffer's real calls, and what it keeps in its own memory."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.trainer.checkpoint_files import CheckpointName
from buffer import Behind, CorruptPayload, Entry, Fenced, Leased, Ledger, NotReady, ReplayBuffer
from buffer.errors import ServerLost
from tests.support.model_store import REPLY, CutStore

FENCED, NO_ANSWER = "fenced", "no answer"


@dataclass(frozen=True)
class Checkpoint:
    """What is durable of one. Its name says which is the newest, as for real ones."""

    name: CheckpointName
    ledger: Ledger | None
    history: tuple[int, ...]


FIRST = Checkpoint(CheckpointName(0, 0, 0), None, ())


@dataclass
class TrainerProcess:
    """One start of the trainer. One step makes one version."""

    buffer: ReplayBuffer
    store: CutStore
    branch: int
    number: int
    limit: int
    per_version: int
    history: tuple[int, ...]
    since: set[int] = field(default_factory=set)
    batch: tuple[Entry, ...] = ()
    corrupt: tuple[int, ...] = ()
    ledger: Ledger | None = None
    """Read for a checkpoint that is not renamed yet."""

    @classmethod
    def recover(
        cls, buffer: ReplayBuffer, store: CutStore, checkpoint: Checkpoint, seen: int, limit: int, per_version: int
    ) -> "TrainerProcess":
        """A trainer that resumes."""
        number = checkpoint.name.number
        branch = buffer.recover(
            secrets.token_hex(8),
            checkpoint.ledger,
            number=number,
            limit=limit,
            groups_per_version=per_version,
            seen=seen,
        )
        return cls(buffer, store, branch, number, limit, per_version, checkpoint.history)

    def lease(self, *, loses_reply: bool = False) -> Leased | NotReady | str:
        """The batch of the next step, or the word for why there is no answer to act on."""
        if loses_reply:
            self.store.cut("lease", REPLY)
        try:
            answer = self.buffer.lease(self.branch, self.number, self.number + 1, self.per_version)
        except ServerLost:
            return NO_ANSWER
        except (Fenced, Behind):
            return FENCED
        if isinstance(answer, Leased):
            self._fetch(answer.entries)
        return answer

    def _fetch(self, entries: Sequence[Entry]) -> None:
        self.corrupt = ()
        for entry in entries:
            try:
                assert self.buffer.fetch(entry).ordinal == entry.ordinal
            except CorruptPayload:
                self.corrupt += (entry.ordinal,)
        self.batch = () if self.corrupt else tuple(entries)

    def give_back(self) -> str:
        """The groups whose payload was not there."""
        corrupt, self.corrupt = self.corrupt, ()
        return self._called(lambda: self.buffer.give_back(self.branch, corrupt, "corrupt_payload"))

    def train(self) -> tuple[int, ...]:
        """The ordinals of the batch, which its weights now know."""
        ordinals = tuple(entry.ordinal for entry in self.batch)
        self.number, self.batch = self.number + 1, ()
        self.history = tuple(sorted((*self.history, *ordinals)))
        self.since |= set(ordinals)
        return ordinals

    def advance(self) -> str:
        """Tell the ledger the version, and read what a checkpoint of it would keep."""
        return self._called(
            lambda: self.buffer.advance(
                self.branch, self.number, limit=self.limit, groups_per_version=self.per_version
            ),
            self.read_ledger,
        )

    def read_ledger(self) -> None:
        """As it goes through a file."""
        ledger = self.buffer.ledger(self.branch, self.number, self.since)
        self.ledger = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))

    def checkpoint(self) -> Checkpoint:
        """The rename. It asks nobody, so a trainer that is fenced since it read the ledger does it, too."""
        try:
            self.read_ledger()
        except (Fenced, Behind):
            assert self.ledger is not None, "a checkpoint has the ledger that its trainer read before"
        return Checkpoint(CheckpointName(self.branch, self.number, self.number), self.ledger, self.history)

    def commit(self) -> str:
        """After the rename."""
        ledger = self.ledger
        assert ledger is not None, "commit comes after the rename"
        answer = self._called(lambda: self.buffer.commit(self.branch, ledger))
        if answer != FENCED:
            self.since = set()
        return answer

    def _called(self, *calls: object) -> str:
        try:
            for call in calls:
                assert callable(call)
                call()
        except (Fenced, Behind):
            return FENCED
        return "done"
