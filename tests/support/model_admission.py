"""Replays traces of the admission model on both real stores at once, with a trainer that never dies and one server."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from buffer import BufferConfig, Claim, Fenced, Leased, PartialEpisode, Partials, ReplayBuffer, StalenessConfig, pack
from buffer.books import CONSUMED, IN_FLIGHT, WAITING
from buffer.ledger import state_of
from buffer.memory_store import MemoryStore
from buffer.partials import UNFINISHED
from buffer.payloads import Payloads
from buffer.redis_store import RedisServer as Connection
from buffer.script_store import RedisStore
from buffer.trajectory import Trajectory
from buffer.wire import encode
from tests.models.admission.state import Setting, State, charged
from tests.models.explorer import Step
from tests.support.groups import group, group_for, row
from tests.support.model_store import LosingPayloads
from tests.support.redis_server import RedisServer
from tests.support.twin_store import TwinStore

UNIT = len(encode(group(0, 1, [pack(1, 0)])))
"""Bytes of every group of a replay, and the largest size that a group may have."""
CLAIM_S, MAX_ROUNDS, NEVER = 60, 40, 99
SKIPPED = "nothing to do it with"


@dataclass
class Playing:
    """A worker with its claim; `oldest` is the number of the oldest version that sampled a token of the group."""

    claim: Claim
    oldest: int | None
    has_started: bool = False


class AdmissionReplay:
    """One run. `play` a trace step by step, then `finish`: nothing but progress."""

    def __init__(self, setting: Setting, server: RedisServer, run: str) -> None:
        self.setting, self.now_ms = setting, 1_700_000_000_000
        clock = lambda: self.now_ms  # noqa: E731 # the one clock of both stores
        scripts = RedisStore(run, Connection(server.url, 5), clock)
        self.twin = TwinStore(MemoryStore(run, clock=clock), scripts, server)
        self.config = BufferConfig(
            claim_s=CLAIM_S,
            max_attempts=setting.max_attempts or NEVER,
            max_group_bytes=UNIT,
            max_bytes=UNIT * setting.max_groups,
        )
        staleness = StalenessConfig(
            policy=setting.policy, order=setting.order, max_stale=NEVER, wait_deadline_s=1e6, limit=setting.limit
        )
        store: Any = self.twin
        self.buffer = ReplayBuffer(store, Payloads(LosingPayloads(), self.config.payload), self.config, staleness)
        self.branch = self.buffer.recover(
            secrets.token_hex(8), None, number=0, limit=setting.limit, groups_per_version=setting.per_version
        )
        self.number = self.head = self.server = self.num_resubmitted = 0
        self.batch: tuple[int, ...] = ()
        self.since: set[int] = set()
        self.playing: dict[int, Playing] = {}
        """ordinal -> who is alive and plays it."""
        self.words: Mapping[str, Callable[[Step], str]] = {
            **{"reserve": self._reserve, "sample": self._sample, "put": self._put, "filter": self._filter},
            **{"park": self._park, "release": self._release, "crash": self._crash, "preempt": self._crash},
            **{"sweep": self._sweep, "resubmit": self._resubmit, "follow": self._follow, "lease": self._lease},
            **{"train": self._train, "publish": self._publish, "advance": self._advance, "commit": self._commit},
        }

    def play(self, step: Step) -> str:
        """Do what the label says, as far as the real thing lets it; the answer in a word. Then look at everything."""
        answer = self.words[step.word](step)
        self.check()
        return answer

    def check(self) -> None:
        """The books are in order, every payload is there, and the budget holds."""
        audit = self.buffer.audit(payloads=True)
        assert audit.ok, audit.problems
        used = self.twin.memory.books().charged_bytes(UNIT)
        assert used <= self.config.max_bytes + self.num_resubmitted * UNIT, "more than the budget is charged"

    def compare(self, state: State) -> None:
        """Where the protocol is followed, model and code agree on every ordinal after every step."""
        books = self.twin.memory.books()
        assert books.next_ordinal == len(state.entries)
        assert (books.trained, len(books.taken)) == (state.trained, state.taken)
        assert (self.number, self.head, self.server) == (state.number, state.head, state.server)
        assert books.charged_bytes(UNIT) == charged(self.setting, state) * UNIT
        for ordinal, entry in enumerate(state.entries):
            found = state_of(books, ordinal)
            counted = found == CONSUMED and ordinal < books.watermark
            assert found == entry.state or counted, f"ordinal {ordinal} is {found}, in the model {entry.state}"
            if entry.state in (IN_FLIGHT, WAITING):
                card = books.cards[ordinal]
                assert bool(card.parked_key) == (entry.parked is not None), f"ordinal {ordinal}: parked in one of them"
                assert card.failures == entry.failures or not self.setting.max_attempts

    def finish(self) -> None:
        """From here on nothing fails: the trainer must reach another version, and the last one of the model."""
        goal = max(self.setting.versions, self.number + 1)
        for _ in range(MAX_ROUNDS):
            self._sweep(Step("anyone", "sweep"))
            self.server = self.head
            self._play_all()
            if self.number >= goal and not self.batch:
                return
            if not self.batch and self._lease(Step("trainer", "lease")) == "too few":
                if self.head < self.number:
                    self._publish(Step("trainer", "publish", how="while it waits"))
            elif self.batch:
                for word in ("train", "publish", "advance", "commit"):
                    self.words[word](Step("trainer", word))
            self.check()
        raise AssertionError(f"nothing moves any more: {self.buffer.counts()}")

    def close(self) -> None:
        self.twin.drop()
        self.twin.close()

    # Workers

    def _play_all(self) -> None:
        """Who plays goes on where a server is new enough, and whatever admission grants is played."""
        while True:
            for ordinal in sorted(self.playing):
                self._sample(Step("worker", "sample", (ordinal,)))
                self._put(Step("worker", "put", (ordinal,)))
            if len(self.playing) >= self.setting.workers or not self._reserve(Step("worker", "reserve")).startswith(
                "g"
            ):
                return

    def _reserve(self, step: Step) -> str:
        claim = self.buffer.reserve("w")
        if not isinstance(claim, Claim):
            return claim.reason
        partials = self.buffer.fetch_partials(claim)
        oldest = None
        if partials is not None:
            spans = (s for e in partials.episodes for row in e.trajectory.rows for s in row.spans)
            oldest = min(span.version for span in spans) & 0xFFFFFFFF
        self.playing[claim.ordinal] = Playing(claim, oldest)
        self._renew(claim.ordinal)
        return f"granted {claim.ordinal}" + ("" if oldest is None else f" with tokens of {oldest}")

    def _renew(self, ordinal: int) -> None:
        player = self.playing[ordinal]
        self.buffer.renew(player.claim, None if player.oldest is None else pack(self.branch, player.oldest))

    def _sample(self, step: Step) -> str:
        player = self.playing.get(step.about[0])
        if player is None or player.has_started:
            return SKIPPED
        if not player.claim.may_start_on(pack(self.branch, self.server)):
            return f"server {self.server} is older than {player.claim.start_from}"
        player.oldest = self.server if player.oldest is None else min(player.oldest, self.server)
        player.has_started = True
        self._renew(step.about[0])
        return f"sampled of {self.server}"

    def _put(self, step: Step) -> str:
        player = self.playing.get(step.about[0])
        if player is None or not player.has_started:
            return SKIPPED
        assert player.oldest is not None
        answer = self.buffer.put(player.claim, group_for(player.claim, pack(self.branch, player.oldest)))
        del self.playing[step.about[0]]
        assert answer != "stale" or not self.setting.strict, f"ordinal {step.about[0]} is born stale"
        return answer

    def _filter(self, step: Step) -> str:
        player = self.playing.pop(step.about[0], None)
        if player is None:
            return SKIPPED
        return self.buffer.put(player.claim, group_for(player.claim, pack(self.branch, 0)), filtered="zero_variance")

    def _park(self, step: Step) -> str:
        player = self.playing.get(step.about[0])
        if player is None or player.oldest is None:
            return SKIPPED
        rows = (row([pack(self.branch, player.oldest)]),)
        unfinished = Trajectory(rows=rows, reward=None, reward_error=UNFINISHED, finish_reason="abort")
        kept = self.buffer.park(player.claim, Partials((PartialEpisode(0, unfinished, False),)))
        return "parked" if kept else "too large"

    def _release(self, step: Step) -> str:
        player = self.playing.pop(step.about[0], None)
        if player is None:
            return SKIPPED
        if step.how == "abandoned":
            self.buffer.abandon(player.claim)
            return "abandoned"
        return self._die(player.claim)

    def _die(self, claim: Claim) -> str:
        """-> dead, with a payload if that can be had: the trainer finds it damaged, once too often."""
        before, self.buffer._limits = self.buffer._limits, replace(self.buffer._limits, max_attempts=1)
        if self.twin.memory.books().open != {claim.ordinal}:
            answer = self.buffer.fail(claim, "reward_failed")
        else:
            self.buffer.put(claim, group_for(claim, pack(self.branch, self.number)))
            trained = self.twin.memory.books().trained
            leased = self.buffer.lease(self.branch, trained, 1000 + claim.ordinal, 1)
            assert isinstance(leased, Leased)
            self.buffer.give_back(self.branch, [claim.ordinal], "corrupt_payload")
            answer = self.buffer.dead_letters()[-1].reason
        self.buffer._limits = before
        return answer

    def _crash(self, step: Step) -> str:
        for ordinal in step.about:
            self.playing.pop(ordinal, None)
        return "died"

    def _sweep(self, step: Step) -> str:
        """The claims of the dead expire; who is alive has renewed."""
        self.now_ms += (CLAIM_S + 1) * 1000
        for ordinal in self.playing:
            self._renew(ordinal)
        report = self.buffer.sweep()
        return f"expired {','.join(map(str, report.expired))}; dead {','.join(map(str, report.dead)) or 'none'}"

    def _resubmit(self, step: Step) -> str:
        self.num_resubmitted += 1
        return f"again {self.buffer.resubmit(step.about)}"

    # Servers and the trainer

    def _follow(self, step: Step) -> str:
        self.server = self.head
        return f"at {self.head}"

    def _publish(self, step: Step) -> str:
        if step.how != "fails":
            self.head = self.number
        return f"head is {self.head}"

    def _lease(self, step: Step) -> str:
        if self.batch:
            return SKIPPED
        if self.number - self.head > self.setting.limit:
            self.head = self.number  # before every lease head must be within the limit
        answer = self.buffer.lease(self.branch, self.number, self.number + 1, self.setting.per_version)
        assert not answer.left or not self.setting.strict, f"{answer.left} were born stale"
        if isinstance(answer, Leased):
            self.batch = tuple(entry.ordinal for entry in answer.entries)
            for entry in answer.entries:
                version = self.buffer.fetch(entry).trajectories[0].rows[0].spans[0].version
                lag = self.number - (version & 0xFFFFFFFF)
                assert entry.lag == lag <= self.setting.limit, f"ordinal {entry.ordinal} is leased with a lag of {lag}"
            return f"leased {','.join(map(str, self.batch))}"
        if answer.bytes_refused and self.since:
            return self._commit(Step("trainer", "commit", how="early"))
        dropped = ",".join(str(left.ordinal) for left in answer.left)
        return "held" if answer.waiting_for else f"too few, {dropped} left" if dropped else "too few"

    def _train(self, step: Step) -> str:
        if not self.batch:
            return SKIPPED
        self.number, self.since, self.batch = self.number + 1, self.since | set(self.batch), ()
        return f"at {self.number}"

    def _advance(self, step: Step) -> str:
        try:
            self.buffer.advance(
                self.branch, self.number, limit=self.setting.limit, groups_per_version=self.setting.per_version
            )
        except Fenced:
            return "fenced"
        return f"at {self.number}"

    def _commit(self, step: Step) -> str:
        ledger = self.buffer.ledger(self.branch, self.number, self.since)
        self.buffer.commit(self.branch, ledger)
        self.since = set()
        return "committed" + (" early" if step.how else "")
