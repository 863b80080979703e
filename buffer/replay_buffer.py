"""The replay buffer: policy over a store. Blocking, thread-safe; one object serves any number of threads.

rollout worker   reserve -> renew ... -> put | fail | abandon
trainer, rank 0  recover -> lease -> fetch -> (give_back) -> advance ... -> ledger, checkpoint's rename -> commit
anyone           sweep, counts, audit, hints
operator         status, groups, dead_letters, pause, resume, stop, resubmit, purge
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from buffer.answers import SweepReport
from buffer.audit import Audit, audit_of
from buffer.config import BufferConfig, StalenessConfig
from buffer.errors import BufferError
from buffer.hints import Hints
from buffer.keys import check_run, evaluation_run, parse_payload_key
from buffer.lineage import Ledger
from buffer.memory_store import MemoryStore
from buffer.operator_side import OperatorSide
from buffer.payloads import Payloads
from buffer.payloads.memory import MemoryPayloads
from buffer.run_record import RunRecord, check_same
from buffer.store import Clock, Store
from buffer.tokens import all_spent
from buffer.trainer_side import TrainerSide
from buffer.versions import label as label_of
from buffer.versions import parse_label, unpack
from buffer.worker_side import WorkerSide

_MAX_REPORT = 1 << 16


@dataclass(frozen=True)
class Evaluated:
    """What a ledger of held-out prompts is the evaluation of.

    Attributes:
        version: packed; every token is to be its.
        server: the one that plays it, because it is kept at that version; None: any that has it.
    """

    version: int
    server: str | None


class ReplayBuffer(WorkerSide, TrainerSide, OperatorSide):
    """The groups of one run, from the workers that play them to the trainer that trains on them."""

    def __init__(
        self, store: Store, payloads: Payloads, config: BufferConfig, staleness: StalenessConfig | None = None
    ) -> None:
        super().__init__(store, payloads, config, staleness)
        self._evaluation: ReplayBuffer | None = None
        self.evaluates: Evaluated | None = None
        """None: the ledger is a run's."""
        self._evaluation_lock = Lock()

    @classmethod
    def connect(
        cls,
        url: str,
        run: str,
        config: BufferConfig,
        staleness: StalenessConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> "ReplayBuffer":
        """Attach to the ledger of `run` on a Redis or Valkey server, after a check of the server.

        Args:
            url: redis://, rediss:// or unix://, with user and password.
            clock: milliseconds in place of the server's clock; for tests.
        Raises:
            ServerRefused: version, eviction policy, permissions or password will not do; the message names the fix.
            ServerLost: the server did not answer for buffer.retry_s.
        """
        # redis is imported by those who connect only.
        from buffer.redis_store import RedisServer
        from buffer.script_store import RedisStore

        server = RedisServer(url, config.retry_s)
        server.check()
        store = RedisStore(check_run(run), server, clock)
        return cls(store, Payloads(store.payloads(), config.payload), config, staleness)

    @classmethod
    def in_memory(
        cls, run: str, config: BufferConfig, staleness: StalenessConfig | None = None, *, clock: Clock | None = None
    ) -> "ReplayBuffer":
        """A buffer in the memory of this process: both sides share the one object."""
        store = MemoryStore(check_run(run), clock=clock)
        return cls(store, Payloads(MemoryPayloads(), config.payload), config, staleness)

    def register(self, record: RunRecord) -> RunRecord:
        """Compare with the run record, which the first caller writes; answer it with what this caller adds.

        Raises:
            RunMismatch: naming the first field that differs.
        """
        stored = self._store.register(record.to_fields())
        check_same(self.run, record, stored)
        return RunRecord.from_fields(stored)

    def record(self) -> RunRecord | None:
        """The run record; None before anybody has registered."""
        stored = self._store.record()
        return RunRecord.from_fields(stored) if stored.get("schema") else None

    def sweep(self) -> SweepReport:
        """Expire lost claims, delete what others left in the trash, and look at one page of payloads for strays."""
        swept = self._store.sweep(self._limits)
        self._delete(swept.trash)
        strays = self._strays()
        self._payloads.delete(strays)
        return SweepReport(swept.expired, swept.dead, swept.guarded, swept.excused, len(swept.trash) + len(strays))

    def counts(self) -> dict[str, int]:
        """How many ordinals are in each state, and next_ordinal, their sum."""
        return self._store.counts()

    def audit(self, *, payloads: bool = False) -> Audit:
        """Check the books against themselves; with `payloads`, also that each payload is there and is what was put."""
        return audit_of(self.run, self._store.books(), self._payloads if payloads else None)

    def stopped(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self._store.record().get("stopped") == "1"

    def stop_mark(self) -> int:
        """How often the run was asked to stop. A process that leaves when this changes obeys no request of before
        its start."""
        return int(self._store.record().get("num_stops", "0"))

    def hints(self, kind: str | None = None) -> Hints:
        """Something to wait on until the ledger changes: "ready", a group came in; "room", anything else; None,
        both."""
        return Hints(self._store, kind)

    def open_evaluation(
        self, version: int, *, num_prompts: int, group_size: int, server: str | None = None
    ) -> "ReplayBuffer":
        """A ledger of its own for the held-out prompts 0..num_prompts-1, which workers reserve from first.

        Args:
            version: packed; what is evaluated, on the trainer's own branch.
            group_size: trajectories per prompt; written into the record of the evaluation.
            server: who plays it alone (see Evaluated); workers find it there, too.
        Raises:
            Fenced, Behind: `version` is not of the ledger's branch.
        """
        branch, number = unpack(version)
        name, books = label_of(version), self._store.lineage(0, 0, ())
        parent, fork = books.forks.get(branch, (0, 0))
        # As the trainer's recover made the branch, so that older servers' versions keep their distance.
        base = Ledger(branch=parent, number=fork, forks={b: at for b, at in books.forks.items() if b < branch})
        evaluation = self._of_evaluation(name)
        store = evaluation._store
        done = store.recover(name, base, number, 0, num_prompts, num_prompts, branch - 1, num_prompts, self._limits)
        if done.branch != branch:
            raise BufferError(
                f"the evaluation of {name} is on branch {done.branch}: a version is evaluated on its own branch."
            )
        store.register({"group_size": str(group_size), "server": server or ""})
        done = self._store.evaluate(branch, self._nonce(branch), name, "", ())
        if done.status != "ok":
            evaluation._delete(store.drop())
        self._check(done, branch, f"evaluation of {name}")
        if done.evaluation and done.evaluation != name:
            self._drop_evaluation(done.evaluation, name, branch)
        evaluation._limit, evaluation._branch, evaluation.evaluates = 0, branch, Evaluated(version, server)
        with self._evaluation_lock:
            self._evaluation = evaluation
        return evaluation

    def evaluation(self) -> "ReplayBuffer | None":
        """The open evaluation, if there is one."""
        name = self._store.record().get("evaluation", "")
        with self._evaluation_lock:
            if not name:
                self._evaluation = None
            elif self._evaluation is None or self._evaluation.run != evaluation_run(self.run, name):
                opened = self._of_evaluation(name)
                opened.evaluates = Evaluated(parse_label(name), opened._store.record().get("server") or None)
                self._evaluation = opened
            return self._evaluation

    def close_evaluation(self, version: int | None = None) -> None:
        """Drop the open evaluation with its groups. Whoever still plays for it is fenced.

        Args:
            version: packed; only if it is of this one. None: whichever is open.
        """
        record = self._store.record()
        if (name := record.get("evaluation", "")) and (version is None or name == label_of(version)):
            branch = int(record["branch"])
            self._check(self._store.evaluate(branch, self._nonce(branch), "", "", ()), branch, "close_evaluation")
            self._drop_evaluation(name, "", branch)

    def report(self, source: str, facts: Mapping[str, float | str]) -> None:
        """Facts about a process, for people to read; nothing that is trained may depend on them. The latest of each
        source is kept.

        Raises:
            BufferError: they are longer than 64 KiB of JSON.
        """
        text = json.dumps(dict(facts))
        if len(text) > _MAX_REPORT:
            raise BufferError(
                f"the report of {source} has {len(text)} characters of JSON, at most {_MAX_REPORT} are kept."
            )
        self._store.report(source, text)

    def reports(self) -> dict[str, dict[str, float | str]]:
        """The latest facts of each source; `at_ms` is when they were reported."""
        return {source: {**_facts(text), "at_ms": at} for source, (at, text) in self._store.reports().items()}

    def close(self) -> None:
        """Let go of the server. The groups stay."""
        self._store.close()

    def _of_evaluation(self, name: str) -> "ReplayBuffer":
        settings = self._staleness.model_copy(update={"order": "ordinal", "policy": "drop", "on_stale": "resubmit"})
        return ReplayBuffer(self._store.of_run(evaluation_run(self.run, name)), self._payloads, self._config, settings)

    def _drop_evaluation(self, label: str, opened: str, branch: int) -> None:
        """`opened`: the evaluation that is open now, which the ledger is told again with the tokens of this one."""
        if label:
            store = self._store.of_run(evaluation_run(self.run, label))
            if spent := all_spent(store.books()):  # a repeat finds the ledger gone, and adds nothing
                self._store.evaluate(branch, self._nonce(branch), opened, label, spent)
            self._payloads.delete(store.drop())
            with self._evaluation_lock:
                self._evaluation = None

    def _strays(self) -> list[str]:
        """Payloads that were written and never put, by a writer that died: old, and named by no books."""
        by_run: dict[str, list[str]] = {}
        for key in self._payloads.strays(self.run, 2 * self._config.claim_s):
            if parts := parse_payload_key(key):
                by_run.setdefault(parts[0], []).append(key)
        strays = []
        for run, keys in by_run.items():
            named = self._store.of_run(run).named(keys)
            strays += [key for key in keys if key not in named]
        return strays


def _facts(text: str) -> dict[str, float | str]:
    """A report as it was given; one that somebody else wrote under its name is shown as such."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {"unreadable": str(error)}
    return facts if isinstance(facts, dict) else {"unreadable": f"a {type(facts).__name__}, expected a map of facts"}
