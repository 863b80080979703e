"""Replays traces of the ledger model on both real stores at once: each label becomes the real call of that process."""

from collections.abc import Callable, Mapping
from typing import Any

from buffer import BufferConfig, Claim, Fenced, Leased, ReplayBuffer, StalenessConfig, pack
from buffer.books import FILTERED, LEASED
from buffer.errors import ServerLost
from buffer.keys import ledger_key
from buffer.ledger import state_of
from buffer.memory_store import MemoryStore
from buffer.payloads import Payloads
from buffer.redis_store import RedisServer as Connection
from buffer.script_store import RedisStore
from buffer.trajectory import Group
from tests.models.explorer import Step
from tests.models.ledger.state import Setting, State, distance
from tests.support.groups import group_for
from tests.support.model_store import REPLY, REQUEST, CutStore, LosingPayloads
from tests.support.model_trainer import FENCED, FIRST, NO_ANSWER, TrainerProcess
from tests.support.redis_server import RedisServer
from tests.support.twin_store import TwinStore

MAX_ROUNDS = 40
CLAIM_S = 60
SKIPPED = "nothing to do it with"
"""Answer where the real thing had refused before what the trace builds on."""


class LedgerReplay:
    """One run. `play` a trace step by step, then `finish`: nothing but progress."""

    def __init__(self, setting: Setting, server: RedisServer, run: str) -> None:
        self.setting, self.now_ms = setting, 1_700_000_000_000
        clock = lambda: self.now_ms  # noqa: E731 # the one clock of both stores
        scripts = RedisStore(run, Connection(server.url, 5), clock)
        self.twin = TwinStore(MemoryStore(run, clock=clock), scripts, server)
        self.home = LosingPayloads()
        self.config = BufferConfig(claim_s=CLAIM_S, max_attempts=99, max_group_bytes=10_000)
        self.anyone, _ = self._attach()
        self.workers: dict[str, tuple[Claim, Group, ReplayBuffer, CutStore]] = {}
        self.trainers: dict[str, TrainerProcess | None] = {"trainer": None, "old trainer": None}
        self.checkpoints = [FIRST]
        self.forks: list[tuple[int, int]] = [(0, 0)]
        self.saved: Any = None
        self.has_lost_tail = False
        self.words: Mapping[str, Callable[[Step], str]] = {
            **{"reserve": self._reserve, "write": self._write, "put": self._put, "filter": self._filter},
            **{"release": self._release, "crash": self._crash, "sweep": self._sweep, "recover": self._recover},
            **{"lease": self._lease, "give_back": self._give_back, "train": self._train, "advance": self._advance},
            **{"checkpoint": self._checkpoint, "commit": self._commit, "stall": self._stall},
            **{"durable": self._durable, "lose tail": self._lose_tail},
        }

    def play(self, step: Step) -> str:
        """Do what the label says, as far as the real thing lets it; the answer in a word. Then look at everything."""
        answer = self.words[step.word](step)
        self.check()
        return answer

    def check(self) -> None:
        """The promises that the model checks, in what both stores hold."""
        audit = self.anyone.audit(payloads=not self.has_lost_tail)
        assert audit.ok, audit.problems
        trainer = self.trainers["trainer"]
        if trainer is not None and trainer.branch == audit.branch:
            consumed = self.twin.memory.books().closed["consumed"]
            assert consumed <= set(trainer.history), "consumed, but the surviving lineage never trained it"
            assert audit.identity["consumed"] <= len(trainer.history)

    def compare(self, state: State) -> None:
        """Where the protocol is followed, model and code agree on every ordinal after every step."""
        books = self.twin.memory.books()
        assert books.next_ordinal == len(state.books.entries)
        assert (books.branch, books.trained) == (state.books.branch, state.books.trained)
        assert books.taken == set(state.books.taken)
        for ordinal, entry in enumerate(state.books.entries):
            found = state_of(books, ordinal)
            counted = entry.state == FILTERED and ordinal < books.watermark  # a commit has counted it
            assert found == entry.state or counted, f"ordinal {ordinal} is {found}, in the model {entry.state}"
            if entry.state == LEASED:
                # Steps are named by the version they make, in the model by the version before.
                step = entry.step if entry.step == -1 else (entry.step or 0) + 1
                assert books.leased[ordinal] == step

    def finish(self) -> None:
        """From here on nothing fails: the trainer must reach another version, and the last one of the model."""
        trainer = self.trainers["trainer"]
        goal = max(self.setting.versions, 1 + (trainer.number if trainer else 0))
        for _ in range(MAX_ROUNDS):
            self.now_ms += (CLAIM_S + 1) * 1000
            self.anyone.sweep()
            self._play_all()
            trainer = self.trainers["trainer"]
            if trainer is None:
                self._recover(Step("trainer", "recover"))
            elif trainer.number >= goal:
                break
            elif self._lease(Step("trainer", "lease")) != SKIPPED and trainer.corrupt:
                trainer.give_back()
            elif trainer.batch:
                self._train(Step("trainer", "train"))
                self._advance(Step("trainer", "advance"))
            self.check()
        else:
            raise AssertionError(f"nothing moves any more: {self.anyone.counts()}")
        assert trainer is not None
        self._checkpoint(Step("trainer", "checkpoint"))
        assert self._commit(Step("trainer", "commit")) == "done"
        self.check()
        assert self.anyone.counts()["consumed"] == len(trainer.history) == len(set(trainer.history))

    def close(self) -> None:
        self.twin.drop()
        self.twin._client.delete(ledger_key(self.twin.run, "hints"))
        self.twin.close()

    def _attach(self) -> tuple[ReplayBuffer, CutStore]:
        """What a process of its own would hold."""
        store: Any = CutStore(self.twin)
        staleness = StalenessConfig(policy="drop", max_stale=99)
        return ReplayBuffer(store, Payloads(self.home, self.config.payload), self.config, staleness), store

    # Workers

    def _reserve(self, step: Step) -> str:
        buffer, store = self._attach()
        if step.how:
            store.cut("reserve", REPLY)
        try:
            claim = buffer.reserve(step.who)
        except ServerLost:
            return NO_ANSWER
        if not isinstance(claim, Claim):
            return claim.reason
        group = group_for(claim, pack(claim.branch, claim.trained))
        self.workers[step.who] = (claim, group, buffer, store)
        return f"granted {claim.ordinal}"

    def _write(self, step: Step) -> str:
        """The payload comes first; the call that names it is still on its way."""
        if step.who not in self.workers:
            return SKIPPED
        claim, group, buffer, store = self.workers[step.who]
        store.cut("put", REQUEST)
        try:
            buffer.put(claim, group)
        except ServerLost:
            return "written"
        raise AssertionError("the call went through")

    def _put(self, step: Step) -> str:
        if step.who not in self.workers:
            return SKIPPED
        claim, group, buffer, store = self.workers[step.who]
        if step.how == "reply lost":
            store.cut("put", REPLY)
        self.home.is_deaf = True
        try:
            answer = buffer.put(claim, group)
        except ServerLost:
            return NO_ANSWER
        except Fenced:
            answer = FENCED
        finally:
            self.home.is_deaf = False
        del self.workers[step.who]
        return answer

    def _filter(self, step: Step) -> str:
        claim, group, buffer, _ = self.workers.pop(step.who)
        return buffer.put(claim, group, filtered="zero_variance")

    def _release(self, step: Step) -> str:
        claim, _, buffer, _ = self.workers.pop(step.who)
        return buffer.fail(claim, "reward_failed", "boom")

    def _sweep(self, step: Step) -> str:
        """Of the claims only that of this ordinal expires: the others are renewed, late but not yet swept."""
        self.now_ms += (CLAIM_S + 1) * 1000
        for token, ordinal in self.twin.memory.books().claims.items():
            if ordinal not in step.about:
                self.twin.renew(ordinal, token, None, 0, self.anyone._limits)
        return f"expired {self.anyone.sweep().expired}"

    def _play_all(self) -> None:
        """One worker takes whatever admission grants, and puts it."""
        while self._reserve(Step("last worker", "reserve")).startswith("granted"):
            self._write(Step("last worker", "write"))
            self._put(Step("last worker", "put"))

    # Trainers

    def _recover(self, step: Step) -> str:
        newest = sorted(self.checkpoints, key=lambda checkpoint: checkpoint.name)
        chosen = newest[-1]
        if "older" in step.how:
            chosen = next((c for c in reversed(newest[:-1]) if c.name.number == step.about[1]), newest[0])
        per_version = self.setting.groups(len(self.forks))
        buffer, store = self._attach()
        seen = newest[-1].name.branch
        trainer = TrainerProcess.recover(buffer, store, chosen, seen, self.setting.limit, per_version)
        self.forks[trainer.branch :] = [(chosen.name.branch, chosen.name.number)]
        self.trainers[step.who] = trainer
        return f"branch {trainer.branch} from {chosen.name}"

    def _lease(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        if trainer is None or trainer.batch or trainer.corrupt:
            return SKIPPED
        answer = trainer.lease(loses_reply=step.how == "reply lost")
        if isinstance(answer, str):
            return self._ended(step, answer)
        if not isinstance(answer, Leased):
            return "too few"
        assert not trainer.corrupt or self.has_lost_tail, "a payload is gone, and nothing was lost"
        for entry in trainer.batch:
            lag = self._lag(trainer, entry)
            assert lag <= self.setting.limit, f"ordinal {entry.ordinal} is leased with a lag of {lag}"
        return f"leased {','.join(str(entry.ordinal) for entry in answer.entries)}"

    def _lag(self, trainer: TrainerProcess, entry: Any) -> int:
        at = (trainer.branch, trainer.number)
        spans = (s for t in trainer.buffer.fetch(entry).trajectories for row in t.rows for s in row.spans)
        return max(distance(tuple(self.forks), (s.version >> 32, s.version & 0xFFFFFFFF), at) for s in spans)

    def _give_back(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        return SKIPPED if trainer is None or not trainer.corrupt else self._ended(step, trainer.give_back())

    def _train(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        if trainer is None or not trainer.batch:
            return SKIPPED
        if {entry.ordinal for entry in trainer.batch} & set(self.setting.poisonous):
            return self._crash(step)
        before = trainer.history
        ordinals = trainer.train()
        assert step.who != "trainer" or not set(ordinals) & set(before), "trained twice on one lineage"
        return f"trained {','.join(map(str, ordinals))}"

    def _advance(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        return SKIPPED if trainer is None or trainer.batch else self._ended(step, trainer.advance())

    def _checkpoint(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        if trainer is None or not trainer.since:
            return SKIPPED
        self.checkpoints.append(trainer.checkpoint())
        return f"renamed {self.checkpoints[-1].name}"

    def _commit(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        return SKIPPED if trainer is None else self._ended(step, trainer.commit())

    def _ended(self, step: Step, answer: str) -> str:
        """A fenced trainer exits; its supervisor starts the newest one again, and no other."""
        if answer == FENCED:
            self.trainers[step.who] = None
        return answer

    def _crash(self, step: Step) -> str:
        self.workers.pop(step.who, None)
        if step.who in self.trainers:
            self.trainers[step.who] = None
        return "died"

    def _stall(self, step: Step) -> str:
        self.trainers = {"trainer": None, "old trainer": self.trainers["trainer"]}
        return "stalled"

    # Redis

    def _durable(self, step: Step) -> str:
        self.saved = (self.twin.save(), self.home.save())
        return "durable"

    def _lose_tail(self, step: Step) -> str:
        books, blobs = self.saved
        self.has_lost_tail = True
        self.twin.lose_tail(books)
        self.home.lose_tail(blobs)
        return "lost"
