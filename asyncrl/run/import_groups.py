"""Play groups of a file into a run's buffer, as a worker would: each under a claim, in order.

consumes  groups, of a file   waits for     admission: the trainer's advance, bytes, a trainer; with `restamp`: weights
                              unblocked by  trainer.loop, advance, commit and publish
produces  groups, to buffer   unblocks      trainer.loop, lease
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from asyncrl import waits
from asyncrl.data.group_files import GroupFile, StoredGroup
from asyncrl.errors import DataError, WaitTimeout
from asyncrl.trainer.lineage import Lineage
from buffer import Claim, Fenced, NotAdmitted, ReplayBuffer, Row, Span, Trajectory, label, unpack
from weightsync import VersionLog

ADMISSION, WEIGHTS = "import waits for admission", "import waits for weights"
RESTAMPED = "restamped"
"""Key of a group's extra_info, where its spans do not name the weights that sampled it."""

SAY_EVERY_S = 5.0


@dataclass(frozen=True)
class ImportSettings:
    """How to import.

    Attributes:
        wait_s: longest wait for admission, or for weights, of one group.
        renew_every_s: seconds between two renewals of a claim, while it waits for weights.
        restamp: spans get the newest published version, whose digest the trainer knows.
        skip, first: leave the first `skip` groups of the file out; take at most `first` of the rest.
        no_wait: stop where a worker would wait for admission.
    """

    wait_s: float
    renew_every_s: float
    restamp: bool = False
    skip: int = 0
    first: int | None = None
    no_wait: bool = False


@dataclass
class ImportReport:
    """What became of the groups of a file.

    Attributes:
        num_groups: groups that were taken from the file, without the skipped ones.
        outcomes: what the buffer answered -> groups: ready; stale (resubmitted or discarded); dead (too large); fenced.
        refused: groups that were not put, because the trainer would not train on them, and why.
        next_group: how many groups of the file are done with: what `skip` goes on from.
        stopped_by: why it ended before the end of the file; empty: it did not.
    """

    num_groups: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: list[dict[str, str]] = field(default_factory=list)
    next_group: int = 0
    stopped_by: str = ""

    @property
    def num_lost(self) -> int:
        """Groups that the trainer will not see: refused, stale, too large, or fenced."""
        return self.num_groups - self.outcomes["ready"]

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data."""
        counted = {name: self.outcomes[name] for name in ("ready", "stale", "filtered", "dead", "fenced")}
        return {
            "num_groups": self.num_groups,
            **counted,
            "refused": self.refused,
            "next_group": self.next_group,
            "stopped_by": self.stopped_by,
        }


class Import:
    """One import of one file; `report` is right at any time, also after an error.

    Args:
        log: of the run's weight versions.
        say: told a line now and then.
    Raises:
        DataError: the file is of another tokenizer or group size than the run.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        log: VersionLog,
        file: GroupFile,
        settings: ImportSettings,
        say: Callable[[str], None],
    ) -> None:
        check_fits(buffer, file)
        self._buffer, self._log, self._file, self._settings, self._say = buffer, log, file, settings, say
        self._worker = f"import:{socket.gethostname()}:{os.getpid()}"
        self._known = Lineage(branch=0, number=0, step=0)
        self._said_s = time.monotonic()
        self._refusal: NotAdmitted | None = None
        self._held: Claim | None = None
        self._ended = False
        self.report = ImportReport()

    async def run(self) -> ImportReport:
        """Import to the end of the file, or to where `no_wait` stops.

        Raises:
            WaitTimeout: a wait passed its deadline; what was imported stays.
            DataError: the file is damaged further on.
            ServerLost: the buffer's server is gone.
        """
        try:
            return await self._run()
        except WaitTimeout as late:
            self.report.stopped_by = str(late)
            raise
        finally:
            # Whatever ended it, an ordinal that it holds goes back at once and at no cost.
            self._ended = True
            if self._held is not None:
                self._buffer.abandon(self._held)

    async def _run(self) -> ImportReport:
        settings, report = self._settings, self.report
        end = len(self._file.sizes) if settings.first is None else settings.skip + settings.first
        report.next_group = min(settings.skip, len(self._file.sizes))
        hints = await waits.in_thread(self._buffer.hints, "room")
        for index, stored in enumerate(self._file.groups()):
            if not settings.skip <= index < end:
                continue
            if found := await waits.in_thread(self._foreign, stored):
                report.refused.append({"gid": f"{stored.ordinal}.{stored.attempt}", "found": found})
            else:
                claim = await self._claim(hints.wait)
                if claim is None:
                    return report
                report.outcomes[await self._put(claim, stored)] += 1
            report.num_groups += 1
            report.next_group = index + 1
            self._say_now_and_then()
        return report

    async def _claim(self, wake: Callable[[float], object]) -> Claim | None:
        """A claim; None where `no_wait` stops."""
        try:
            return await waits.until(
                ADMISSION,
                self._reserve,
                why=lambda: f"{self._refusal.reason}: {self._refusal.detail}" if self._refusal else "not asked yet",
                wake=wake,
                deadline_s=0.0 if self._settings.no_wait else self._settings.wait_s,
            )
        except WaitTimeout as late:
            if not self._settings.no_wait:
                raise
            self.report.stopped_by = late.why
            return None

    def _reserve(self) -> Claim | None:
        answer = self._buffer.reserve(self._worker)
        if isinstance(answer, NotAdmitted):
            self._refusal = answer
            return None
        self._held = answer
        if self._ended:  # this thread was left alone with its call
            self._buffer.abandon(answer)
        return answer

    async def _put(self, claim: Claim, stored: StoredGroup) -> str:
        try:
            if self._settings.restamp:
                stored = await self._restamped(claim, stored)
            outcome = await waits.in_thread(self._buffer.put, claim, stored.as_group(claim.ordinal, claim.attempt))
        except Fenced:
            outcome = "fenced"
        self._held = None
        return outcome

    async def _restamped(self, claim: Claim, stored: StoredGroup) -> StoredGroup:
        """The group as if its tokens were of the newest published weights, once these are new enough for the claim."""
        renewed_s = time.monotonic()
        seen = "no version is published yet"

        def newest() -> Span | None:
            nonlocal renewed_s, seen
            if time.monotonic() - renewed_s >= self._settings.renew_every_s:
                renewed_s = time.monotonic()
                self._buffer.renew(claim)
            head = self._log.head()
            if head is not None:
                seen = f"the newest published version is {label(head.version)}"
            return Span(head.version, head.digest, 1) if head and claim.may_start_on(head.version) else None

        start = f"number {claim.start_from} of branch {claim.branch}"
        stamp = await waits.until(
            WEIGHTS,
            newest,
            why=lambda: f"ordinal {claim.ordinal} may start from {start} on; {seen}.",
            wake=self._log.watch(("head",)).wait,
            deadline_s=self._settings.wait_s,
        )
        return restamp(stored, stamp.version, stamp.digest, str(self._file.about.get("run", "")))

    def _foreign(self, stored: StoredGroup) -> str:
        """Why the trainer would not train on the group as it is; empty: it would, or nobody can tell yet."""
        if self._settings.restamp or self._log.head() is None:
            return ""
        group = stored.as_group(stored.ordinal, max(1, stored.attempt))
        return self._known.foreign_span(group, self._log.digest_of)

    def _say_now_and_then(self) -> None:
        if time.monotonic() - self._said_s >= SAY_EVERY_S:
            self._said_s = time.monotonic()
            self._say(f"{self.report.next_group} of {len(self._file.sizes)} groups")


def restamp(stored: StoredGroup, version: int, digest: int, run: str) -> StoredGroup:
    """The group with all its sampled tokens under one version, and a note of it in its extra_info.

    Logprobs stay those of the weights that sampled, so that importance weights see the true distance.
    """
    versions = {span.version for t in stored.trajectories for row in t.rows for span in row.spans}
    note = {"to": label(version), "from": [label(one) for one in sorted(versions, key=unpack)], "run": run}

    def row_of(row: Row) -> Row:
        return replace(row, spans=(Span(version, digest, row.num_sampled),) if row.num_sampled else ())

    def trajectory_of(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, rows=tuple(map(row_of, trajectory.rows)))

    trajectories = tuple(map(trajectory_of, stored.trajectories))
    return replace(stored, trajectories=trajectories, extra_info={**stored.extra_info, RESTAMPED: note})


def check_fits(buffer: ReplayBuffer, file: GroupFile) -> None:
    """See that the tokens of a file mean the same in the run, and that its groups have the run's size.

    Raises:
        DataError: they do not; names both.
    """
    record, theirs = buffer.record(), file.about.get("record") or {}
    if record is None:
        return
    tokenizer = theirs.get("tokenizer", "")
    if record.tokenizer and tokenizer and record.tokenizer != tokenizer:
        raise DataError(
            f"{file.path} has tokens of tokenizer {tokenizer}, run {buffer.run!r} has tokenizer {record.tokenizer}: "
            "the same ids would be other words. Import it into a run of the same model."
        )
    for index, size in enumerate(file.answers):
        if record.group_size and size != record.group_size:
            raise DataError(
                f"{file.path}: group {index} (from 0) has {size} trajectories, run {buffer.run!r} has groups of "
                f"rollout.n = {record.group_size}. Import it into a run with rollout.n={size}."
            )
