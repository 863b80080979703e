"""The processes of a soak: a server, producers, a trainer; who dies is started again, as a supervisor would."""

import multiprocessing
import os
import signal
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess

from tests.support.redis_server import RedisServer
from tests.support.soak import processes, producer, trainer
from tests.support.soak.journal import Reader
from tests.support.soak.settings import Settings

_PRELOAD = [
    *("tests.support.soak.producer", "tests.support.soak.trainer"),
    *("buffer.script_store", "buffer.redis_store", "fsspec.implementations.local"),
]
_MOST = 30
"""Violations after which there is no point in going on."""
MAIN = "trainer"
FINE = (processes.DONE, processes.FENCED, processes.BEHIND, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes that are no violation. -15: asked to leave before it listened."""


class Member:
    """One process."""

    def __init__(self, who: str, process: BaseProcess) -> None:
        self.who, self.process = who, process
        assert process.pid is not None, "the process was started"
        # Not by its number: the fork server buries it, and then the number may be somebody else's.
        self._handle = os.pidfd_open(process.pid)
        weakref.finalize(self, os.close, self._handle)

    @property
    def code(self) -> int | None:
        """Exit code; None while it lives."""
        return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)


class Cluster:
    """`members` by slot: producer-0 ..., trainer. `strangers`: trainers that were replaced and live on."""

    def __init__(self, settings: Settings, server: RedisServer) -> None:
        self.settings, self.server = settings, server
        self.journal = Reader(settings.journal)
        self.members: dict[str, Member] = {}
        self.strangers: list[Member] = []
        self.held: set[str] = set()
        """Slots that are not to be filled for now."""
        self.violations: list[str] = []
        self.exits: Counter[str] = Counter()
        self.damaged: set[str] = set()
        """Keys of payloads that a fault has changed or deleted."""
        self.lost_bytes = 0
        """Of the server's append-only file."""
        self._num_started = 0
        # Forked from a process that has imported everything: a start takes milliseconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)

    @property
    def producers(self) -> list[str]:
        return [f"producer-{index}" for index in range(self.settings.num_producers)]

    def start(self, slot: str) -> Member:
        """Start the process of a slot."""
        self._num_started += 1
        who = f"{slot}#{self._num_started}"
        main: Callable[[Settings, str], None] = trainer.main if slot == MAIN else producer.main
        process = self._context.Process(target=main, args=(self.settings, who), daemon=True)
        process.start()
        self.members[slot] = Member(who, process)
        return self.members[slot]

    def replace_trainer(self) -> tuple[Member, Member]:
        """Start a trainer beside the one that lives: (the old one, the new one)."""
        old = self.members[MAIN]
        self.strangers.append(old)
        return old, self.start(MAIN)

    def new_trainer(self) -> Callable[[], bool]:
        """Kill the trainer; what answers whether the next one has opened its branch."""
        before = self.members.get(MAIN)
        self.kill(MAIN)
        return lambda: self.members.get(MAIN) is not before and self.recovered(self.members.get(MAIN))

    def recovered(self, member: Member | None) -> bool:
        """Whether a trainer has opened its branch."""
        return member is not None and self.journal.by_who[member.who, "recovered"] > 0

    def look_after(self) -> None:
        """Read the journal, and fill the slots of those that ended."""
        assert len(self.violations) < _MOST, "\n".join(self.violations)
        self.journal.follow()
        for slot in (MAIN, *self.producers):
            member = self.members.get(slot)
            if member is not None and member.code is None:
                continue
            if member is not None:
                self._note_end(member)
                if member.code == processes.FENCED:
                    self.violations.append(f"{member.who} is fenced, but nobody has replaced it")
                del self.members[slot]
            if slot not in self.held:
                self.start(slot)
        for member in [one for one in self.strangers if one.code is not None]:
            self._note_end(member)
            self.strangers.remove(member)

    def kill(self, slot: str) -> None:
        """kill -9."""
        if slot in self.members:
            self.members[slot].signal(signal.SIGKILL)

    def stop(self, slot: str) -> None:
        """SIGTERM, also to who is frozen."""
        if slot in self.members:
            self.members[slot].signal(signal.SIGCONT)
            self.members[slot].signal(signal.SIGTERM)

    def kill_all(self) -> None:
        """Whatever happened: nobody stays."""
        for member in (*self.members.values(), *self.strangers):
            member.signal(signal.SIGKILL)
            member.process.join()

    def stop_all(self, seconds: float) -> None:
        """SIGTERM to everybody; SIGKILL to who does not leave, which is a violation."""
        everybody = [*self.members.values(), *self.strangers]
        for member in everybody:
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for member in everybody:
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.code is None:
                self.violations.append(f"{member.who} did not leave in {seconds} s after SIGTERM")
                member.signal(signal.SIGKILL)
                member.process.join()
            self._note_end(member)
        self.members.clear()
        self.strangers.clear()
        self.journal.follow()

    def _note_end(self, member: Member) -> None:
        code = member.code
        self.exits[f"{member.who.partition('#')[0].partition('-')[0]}:{code}"] += 1
        if code not in FINE:
            log = processes.log_of(self.settings.work, member.who)
            self.violations.append(f"{member.who} ended with code {code}: {log}")
