"""The groups of a step: leased by rank 0, shared out to the ranks, fetched and checked by each for itself.

consumes  groups, from buffer             waits for     groups_per_step fresh groups ("trainer waits for fresh groups"),
                                                        last-chance groups in flight ("stale_groups")
                                          unblocked by  rollout.worker, put
produces  whole groups for this rank      unblocks      nobody; `advance` does that
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import msgpack

from asyncrl import waits
from asyncrl.errors import DataError, WaitTimeout
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.parallel import assign, mini_batches
from asyncrl.trainer.parts import TrainerParts
from asyncrl.trainer.signals import Signals
from asyncrl.trainer.sweeper import Sweeper
from buffer import Group
from buffer.answers import Entry, Leased, LeftGroup, NotReady

log = logging.getLogger(__name__)

ANSWER_EVERY_S = 5.0
FRESH, STALE = "trainer waits for fresh groups", "stale_groups"


@dataclass(frozen=True)
class StepGroups:
    """A step's groups.

    Attributes:
        groups: this rank's, in ordinal order.
        mini_batches: ordinals of each optimizer step of one pass, over all ranks.
        entries: of the groups of all ranks, in ordinal order.
        left: groups that left as stale since the last step; on rank 0.
    """

    groups: Sequence[Group]
    mini_batches: Sequence[Sequence[int]]
    entries: Sequence[Entry]
    left: Sequence[LeftGroup]


@dataclass(frozen=True)
class NoGroups:
    """Why there are none now. `lend`: the wait is worth lending the devices; `answer_needs`: a server asks for an
    anchor; `publish`: head is behind what is trained, and groups in flight may be waiting for it; `timeout`,
    `no_signal`: `error` says of what."""

    reason: Literal["save", "stop", "lend", "answer_needs", "publish", "timeout", "no_signal"]
    error: WaitTimeout | DataError | None = None


class Intake:
    """Brings one step's groups after the other. Every rank calls `next` together."""

    def __init__(
        self,
        parts: TrainerParts,
        lineage: Lineage,
        stop: threading.Event,
        is_publishing: Callable[[], bool],
        pays_to_lend: Callable[[int], bool],
    ) -> None:
        """Take what a wait depends on.

        Args:
            is_publishing: whether a version is on its way, so that head and needs are not looked at yet.
            pays_to_lend: whether the devices should be lent while so many groups are missing; asked on rank 0.
        """
        self._parts, self._lineage, self._stop, self._is_publishing = parts, lineage, stop, is_publishing
        self._pays_to_lend = pays_to_lend
        self._buffer, self._ranks = parts.buffer, parts.collective
        self._sweeper = Sweeper(parts.buffer)
        self._signals = Signals(
            parts.buffer, parts.config.algorithm.max_gen_batches, parts.config.schedule.groups_per_step
        )
        self._left: list[LeftGroup] = []
        self._not_ready: NotReady | None = None
        self._early: Leased | NotReady | None = None
        """The answer to the lease that the last wait ended with."""
        self._no_answer_before_s = 0.0
        self._no_publish_before_s = 0.0

    async def next(self, *, can_free_bytes: Callable[[], bool]) -> StepGroups | NoGroups:
        """The groups of the step after the one that is finished.

        Args:
            can_free_bytes: whether a checkpoint now would free trained groups; asked on rank 0.
        Raises:
            Fenced, Behind: see `buffer.errors`; on rank 0, and the other ranks end with it.
        """
        start_s = time.monotonic()
        while True:
            decision = await decided_by_rank0(self._ranks, lambda: self._lease(start_s, can_free_bytes))
            if decision["do"] == "timeout":
                return NoGroups("timeout", WaitTimeout(*decision["late"]))
            if decision["do"] == "no_signal":
                return NoGroups("no_signal", DataError(decision["why"]))
            if decision["do"] != "train":
                return NoGroups(decision["do"])
            entries = [_entry(plain) for plain in decision["entries"]]
            own = set(decision["shares"][self._ranks.place.data_rank])
            groups, refused = await waits.blocking(
                "trainer fetches groups", self._fetch, [entry for entry in entries if entry.ordinal in own]
            )
            if not await self._some_refused(refused):
                left, self._left = self._left, []
                return StepGroups(groups, decision["mini_batches"], entries, left)

    async def _lease(self, start_s: float, can_free_bytes: Callable[[], bool]) -> Decision:
        """Rank 0's decision: the plan of a batch, or why there is none."""
        name = FRESH
        while True:
            left_s = self._parts.config.trainer.lease_wait_s - (time.monotonic() - start_s)
            try:
                decision = await waits.until(
                    name,
                    partial(self._attempt, can_free_bytes, waits_for_stale=name == STALE),
                    why=self._why,
                    wake=self._wake,
                    deadline_s=max(left_s, 0.0),
                )
            except WaitTimeout as late:
                waited_s = time.monotonic() - start_s
                why = late.why + await waits.in_thread(self._what_was_lost)
                return {"do": "timeout", "late": [FRESH, waited_s, self._parts.config.trainer.lease_wait_s, why]}
            if decision["do"] != "rename":
                return decision
            name = STALE if name == FRESH else FRESH

    def _attempt(self, can_free_bytes: Callable[[], bool], *, waits_for_stale: bool) -> Decision | None:
        if self._stop.is_set() or self._buffer.stopped():
            if isinstance(self._early, Leased):  # so that it is not held against them that their trainer went
                self._buffer.give_back(self._lineage.branch, [entry.ordinal for entry in self._early.entries])
            self._early = None
            return {"do": "stop"}
        answer, self._early = self._early or self._lease_once(), None
        self._left += answer.left
        if isinstance(answer, Leased):
            self._signals.leased()
            return self._plan(answer)
        self._not_ready = answer
        if why := self._signals.missing():
            return {"do": "no_signal", "why": why}
        if answer.bytes_refused and can_free_bytes():
            return {"do": "save"}
        if not self._is_publishing():
            if self._answers_needs():
                return {"do": "answer_needs"}
            if self._head_is_behind():
                return {"do": "publish"}
        if self._pays_to_lend(answer.num_missing):
            return {"do": "lend"}
        self._sweeper.sweep()
        return {"do": "rename"} if bool(answer.waiting_for) != waits_for_stale else None

    def _answers_needs(self) -> bool:
        """Whether a server asks for an anchor, and the last answer is not just a moment ago: it may have failed."""
        if time.monotonic() < self._no_answer_before_s or not self._parts.log.needs():
            return False
        self._no_answer_before_s = time.monotonic() + ANSWER_EVERY_S
        return True

    def _head_is_behind(self) -> bool:
        """Whether the last publish failed, and the last try is not just a moment ago.

        Head within the limit of the trainer is not enough: claims of the version after this one start on this one only,
        and the batch may need one of them since a group of it was filtered.
        """
        if time.monotonic() < self._no_publish_before_s:
            return False
        self._no_publish_before_s = time.monotonic() + ANSWER_EVERY_S
        return self._parts.publisher.head() != self._lineage.version

    def _wake(self, deadline_s: float) -> bool:
        """Block until a lease may have another answer, not at each of the groups that it lacks, and take it along."""
        self._early = self._lease_once(self._not_ready, deadline_s)
        return True

    def _lease_once(self, after: NotReady | None = None, wait_s: float = 0.0) -> Leased | NotReady:
        lineage, count = self._lineage, self._parts.config.schedule.groups_per_step
        step = lineage.step + 1
        return self._buffer.lease(lineage.branch, lineage.number, step, count, after=after, wait_s=wait_s)

    def _why(self) -> str:
        answer = self._not_ready
        if answer is None:
            return "the ledger has not answered yet"
        held = "".join(f"; ordinal {g.ordinal} held for {g.age_s:.0f} s by {g.worker}" for g in answer.waiting_for)
        if held:
            most_s = self._parts.config.staleness.wait_deadline_s
            held += f"; they are waited for {most_s:.0f} s at most (staleness.wait_deadline_s), then dropped when stale"
        return f"{answer.detail}{held}; is serve-rollout running?"

    def _what_was_lost(self) -> str:
        """What became of the groups that did not come: producers that all fail say so nowhere else here."""
        lost = {reason: count for reason, count in self._buffer.usage().reasons.items() if count}
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(lost.items()))
        letters = sorted(self._buffer.dead_letters(), key=lambda letter: letter.died_ms)
        last = "".join(f"; the last to die, {one.ordinal}.{one.attempt}: {one.error}" for one in letters[-1:])
        return f" Lost so far: {counts}{last}." if counts else ""

    def _plan(self, leased: Leased) -> Decision:
        """Who trains what: whole groups, each mini-batch balanced by tokens."""
        tokens = {entry.ordinal: sum(entry.tokens) for entry in leased.entries}
        parts = mini_batches(list(tokens), self._parts.config.actor.ppo_mini_batches)
        data_world = self._ranks.place.data_world
        shares: list[list[int]] = [[] for _ in range(data_world)]
        for part in parts:
            chosen = assign({ordinal: tokens[ordinal] for ordinal in part}, data_world)
            for share, more in zip(shares, chosen, strict=True):
                share += more
        return {
            "do": "train",
            "entries": [asdict(entry) for entry in leased.entries],
            "mini_batches": parts,
            "shares": shares,
        }

    def _fetch(self, entries: Sequence[Entry]) -> tuple[list[Group], list[tuple[int, str]]]:
        """This rank's groups in ordinal order, and (ordinal, reason) of those that must not be trained on."""
        groups, refused = [], []
        for entry, group in self._buffer.fetch_each(sorted(entries, key=lambda entry: entry.ordinal)):
            if not isinstance(group, Group):
                log.warning("group %s is given back: %s", entry.gid, group)
                refused.append((entry.ordinal, "corrupt_payload"))
                continue
            foreign = self._lineage.foreign_span(group, self._parts.publisher.digest_of)
            if foreign:
                log.warning("%s; it is left out", foreign)
                refused.append((entry.ordinal, "unknown_weights"))
            else:
                groups.append(group)
        return groups, refused

    async def _some_refused(self, refused: list[tuple[int, str]]) -> bool:
        """Give back what any rank refused; the next lease of this step takes others in their place."""
        reports = self._ranks.gather(msgpack.packb(refused))

        async def give_back() -> Decision:
            assert reports is not None
            # Once each: ranks that train the same groups refuse the same ones.
            every = sorted({tuple(one) for report in reports for one in msgpack.unpackb(report)})
            for reason in sorted({reason for _, reason in every}):
                ordinals = [ordinal for ordinal, why in every if why == reason]
                await waits.blocking(
                    "trainer updates the ledger", self._buffer.give_back, self._lineage.branch, ordinals, reason
                )
            return {"refused": len(every)}

        decision = await decided_by_rank0(self._ranks, give_back)
        return bool(decision["refused"])


def _entry(plain: Decision) -> Entry:
    lists = {name: tuple(plain[name]) for name in ("tokens", "sampled", "rewards")}
    return Entry(**{**plain, **lists})
