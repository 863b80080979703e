"""A small rollout cluster in a thread: plays what the buffer admits, as a function of the ordinal alone."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from buffer import Group, ReplayBuffer, Trajectory
from buffer.answers import Claim, NotAdmitted
from buffer.errors import Fenced
from tests.support.tiny_policy import make_groups
from weightsync.log import VersionLog


class RolloutThread:
    """Reserves, waits for a version it may start on, and puts a group whose tokens carry that version and its digest.

    The tokens of an ordinal are always the same, so that training on them does not depend on who was when.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        log: VersionLog,
        model_dir: Path,
        group_size: int,
        *,
        change: Callable[[Group], Group] = lambda group: group,
        plays: Callable[[ReplayBuffer], bool] = lambda ledger: True,
        memo: dict[int, Group] | None = None,
    ) -> None:
        """`change`: what becomes of a group for training; `plays`: whether to reserve from a ledger now; `memo`: groups
        that were made before, for runs of one model: making one costs more than training on it."""
        self._plays = plays
        self._buffer, self._log, self._model_dir, self._group_size, self._change = (
            buffer,
            log,
            model_dir,
            group_size,
            change,
        )
        self._stop = threading.Event()
        self._memo: dict[int, Group] = {} if memo is None else memo
        self.error: BaseException | None = None
        self.put: list[tuple[str, int]] = []

    @contextmanager
    def running(self):
        """Play while the block runs; what went wrong in the thread is raised at its end."""
        thread = threading.Thread(target=self._run, name="rollout", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(20)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            hints = self._buffer.hints()
            while not self._stop.is_set():
                if not self._play_one():
                    hints.wait(0.05)
        except BaseException as error:
            self.error = error

    def _play_one(self) -> bool:
        for ledger in (self._buffer.evaluation(), self._buffer):
            claim = ledger.reserve("thread") if ledger is not None and self._plays(ledger) else None
            if claim is None or isinstance(claim, NotAdmitted):
                continue
            version = self._kept_version(ledger) or self._version_for(claim)
            if version is None:
                ledger.abandon(claim)
                return False
            group = self._group(claim, version, is_evaluation=ledger is not self._buffer)
            try:
                self.put.append((ledger.put(claim, group), claim.ordinal))
            except Fenced:
                self.put.append(("fenced", claim.ordinal))
            return True
        return False

    def _kept_version(self, ledger: ReplayBuffer) -> int | None:
        """The version of an evaluation that one server plays, once it is published; None: the claim decides."""
        kept = ledger.evaluates
        if kept is None or kept.server is None:
            return None
        watch = self._log.watch(("head",))
        while not self._stop.is_set() and self._log.digest_of(kept.version) is None:
            watch.wait(0.05)
        return kept.version

    def _version_for(self, claim: Claim) -> int | None:
        watch = self._log.watch(("head",))
        while not self._stop.is_set():
            head = self._log.head()
            if head is not None and claim.may_start_on(head.version):
                return head.version
            watch.wait(0.05)
        return None

    def _group(self, claim: Claim, version: int, *, is_evaluation: bool) -> Group:
        key = -1 - claim.ordinal if is_evaluation else claim.ordinal
        if key not in self._memo:
            size = 2 if is_evaluation else self._group_size
            (self._memo[key],) = make_groups(self._model_dir, 1, size, seed=1000 + key, first_ordinal=claim.ordinal)
        digest = self._log.digest_of(version) or 0

        def stamped(trajectory: Trajectory) -> Trajectory:
            rows = tuple(
                replace(row, spans=tuple(replace(span, version=version, digest=digest) for span in row.spans))
                for row in trajectory.rows
            )
            texts = {"prompt_text": f"prompt {claim.ordinal}", "response_text": "answer"} if is_evaluation else {}
            return replace(trajectory, rows=rows, extra_info=texts)

        group = self._memo[key]
        group = replace(group, attempt=claim.attempt, trajectories=tuple(stamped(t) for t in group.trajectories))
        return group if is_evaluation else self._change(group)
