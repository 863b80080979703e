"""A trainer of a soak: recover -> lease -> fetch -> "train" -> advance ... -> ledger, rename, commit; from its newest
checkpoint, until it is killed, fenced or behind."""

import os
import secrets
import signal
import time

from buffer import CorruptPayload, Group, Leased, NotReady
from buffer.answers import Entry
from buffer.versions import distance, pack, unpack
from tests.support.soak import checkpoints, content, fleet, processes
from tests.support.soak.checkpoints import Checkpoint, Name
from tests.support.soak.journal import Journal
from tests.support.soak.producer import note_sweep
from tests.support.soak.settings import Settings, prompt

WAIT_S, SWEEP_EVERY_S = 0.2, 0.3


class Stuck(Exception):
    """No batch for settings.lease_wait_s."""


class Trainer:
    """One trainer process: its place in the tree of versions, and what its lineage has trained."""

    def __init__(self, settings: Settings, journal: Journal, stop: processes.Stop) -> None:
        self._settings, self._journal, self._stop = settings, journal, stop
        self._buffer = settings.connect()
        self._hints = self._buffer.hints()
        self._parent: Name | None = None
        self._new: list[tuple[int, tuple[int, ...]]] = []
        """(step, ordinals) since the last checkpoint."""
        self._ever: set[int] = set()
        """All that this lineage has trained."""
        self._masked: dict[str, int] = {}
        self._number = self._step = self._leased = 0
        self._swept_s = self._fed_s = time.monotonic()

    def run(self) -> None:
        """Take over, then train until asked to stop."""
        self._take_over()
        while not self._stop.is_set():
            draining = self._settings.draining.exists()
            entries = self._lease(draining)
            if entries is None:
                continue
            groups = self._fetch(entries)
            if groups is None:
                continue
            self._train(groups)
            if draining or self._step % self._settings.checkpoint_every == 0:
                self._checkpoint()
        if self._new:
            self._checkpoint()
        self._buffer.close()

    def _take_over(self) -> None:
        tip = checkpoints.newest(self._settings.checkpoints)
        ledger = None
        if tip is not None:
            self._parent, ledger = tip.name, tip.ledger
            self._number, self._step = tip.name.number, tip.name.step
            chain = checkpoints.lineage(self._settings.checkpoints, tip)
            self._ever = {o for one in chain for _, ordinals in one.trained for o in ordinals}
        self._branch = self._buffer.recover(
            secrets.token_hex(8),
            ledger,
            number=self._number,
            limit=self._settings.limit,
            groups_per_version=self._settings.groups_per_version,
            seen=fleet.owner_of(self._settings.head),
        )
        self._forks = dict(self._buffer.ledger(self._branch, self._number, ()).forks)
        self._journal.write("recovered", branch=self._branch, number=self._number, step=self._step)
        if self._settings.halt.exists():
            os.kill(os.getpid(), signal.SIGSTOP)
        fleet.publish(self._settings.head, self._branch, self._number)

    def _lease(self, draining: bool) -> tuple[Entry, ...] | None:
        count = self._settings.groups_per_step
        if draining:  # the last groups are no whole batch
            count = min(count, max(1, self._buffer.counts()["ready"]))
        if self._leased:  # some of this step were given back: a repeat brings others in their place
            count = self._leased
        answer = self._buffer.lease(self._branch, self._number, self._step + 1, count)
        for left in answer.left:
            self._journal.write(f"stale_{left.outcome}", ordinal=left.ordinal, lag=left.lag)
        if isinstance(answer, Leased):
            self._fed_s, self._leased = time.monotonic(), count
            return answer.entries
        self._leased = 0
        self._wait(answer, draining)
        return None

    def _wait(self, answer: NotReady, draining: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._fed_s > self._settings.lease_wait_s and not draining:
            raise Stuck(f"no batch for {self._settings.lease_wait_s} s: {answer.detail}")
        if answer.bytes_refused and self._new:
            self._journal.write("checkpoint_for_bytes")
            self._checkpoint()
        if answer.waiting_for:
            self._journal.write("waits_for_stale", ordinals=[group.ordinal for group in answer.waiting_for])
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            note_sweep(self._journal, self._buffer.sweep())
        self._hints.wait(WAIT_S)

    def _fetch(self, entries: tuple[Entry, ...]) -> list[Group] | None:
        groups, damaged = [], []
        for entry in entries:
            try:
                groups.append(self._buffer.fetch(entry))
            except CorruptPayload as error:
                self._journal.write("corrupt_payload", ordinal=entry.ordinal, error=str(error))
                damaged.append(entry.ordinal)
                continue
            self._verify(entry, groups[-1])
        if damaged:
            self._buffer.give_back(self._branch, damaged, "corrupt_payload")
            return None
        return groups

    def _verify(self, entry: Entry, group: Group) -> None:
        plan = prompt(self._settings, entry.ordinal)
        problems = content.problems(self._settings, plan, group)
        if entry.ordinal in self._ever:
            problems.append(f"{entry.gid} was leased to a lineage that has trained it")
        problems += [f"{entry.gid} is of an ordinal that never is trained ({plan.fate})"] * (plan.fate in NEVER)
        lag = max(self._lag(span.version) for t in group.trajectories for row in t.rows for span in row.spans)
        if max(lag, entry.lag) > self._settings.limit:
            problems.append(f"{entry.gid} was leased with lag {lag} (entry: {entry.lag})")
        for problem in problems:
            self._journal.write("violation", problem=problem)

    def _lag(self, version: int) -> int:
        branch, number = unpack(version)
        if branch == self._branch:
            return max(0, self._number - number)  # after a lost tail a server may be ahead of its branch
        forks = self._forks if branch in self._forks or branch == 0 else {**self._forks, branch: (0, 0)}
        return distance(forks, pack(self._branch, self._number), version)

    def _train(self, groups: list[Group]) -> None:
        plans = [prompt(self._settings, group.ordinal) for group in groups]
        if any(plan.fate == "poison" for plan in plans):
            self._journal.write("poisoned", ordinals=[plan.ordinal for plan in plans])
            os.kill(os.getpid(), signal.SIGKILL)
        ordinals = tuple(group.ordinal for group in groups)
        self._step += 1
        self._leased = 0
        self._new.append((self._step, ordinals))
        self._ever.update(ordinals)
        for group in groups:
            lost = sum(t.num_sampled for t in group.trajectories if t.reward is None)
            self._masked[group.data_source] = self._masked.get(group.data_source, 0) + lost
        self._journal.write("trained", branch=self._branch, step=self._step, ordinals=ordinals)
        if self._step % self._settings.steps_per_version == 0:
            self._number += 1
            self._buffer.advance(
                self._branch,
                self._number,
                limit=self._settings.limit,
                groups_per_version=self._settings.groups_per_version,
            )
            fleet.publish(self._settings.head, self._branch, self._number)

    def _checkpoint(self) -> None:
        trained = [ordinal for _, ordinals in self._new for ordinal in ordinals]
        ledger = self._buffer.ledger(self._branch, self._number, trained, self._masked)
        name = Name(self._branch, self._number, self._step)
        checkpoints.write(self._settings.checkpoints, Checkpoint(name, self._parent, tuple(self._new), ledger))
        self._parent, self._new, self._masked = name, [], {}
        self._buffer.commit(self._branch, ledger)
        self._journal.write("committed", name=str(name))


NEVER = ("filter", "too_large", "always_fails")
"""Fates of prompts that never give a group to train on."""


def main(settings: Settings, who: str) -> None:
    """A trainer process."""
    processes.run(lambda journal, stop: Trainer(settings, journal, stop).run(), settings, who)
