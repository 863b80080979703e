"""The buffer in a simulation: which groups are open, who may start, what a lease takes. Its rules are the buffer's."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from asyncrl.tuning.draws import EpisodeDraw
from asyncrl.tuning.profile import Setting, Workload
from buffer import staleness


@dataclass
class SimGroup:
    """A group from its first claim to its end.

    Attributes:
        start_from: the smallest version of a server on which its episodes may start.
        oldest: version of its oldest sampled token.
        told: the same as the ledger knows it: a request tells when it is answered.
        num_playing: episodes that are not finished.
        num_stale: times it left for being stale.
    """

    ordinal: int
    episodes: list[EpisodeDraw]
    start_from: int = 0
    oldest: int = staleness.NEVER_STALE
    told: int = staleness.NEVER_STALE
    num_playing: int = 0
    num_stale: int = 0

    def begin(self, start_from: int) -> None:
        """Start it, from its prompt."""
        self.start_from, self.num_playing = start_from, len(self.episodes)
        self.oldest = self.told = staleness.NEVER_STALE

    @property
    def lengths(self) -> list[float]:
        """Tokens of its answers."""
        return [episode.tokens for episode in self.episodes]


@dataclass
class Ledger:
    """The open groups of a run. `left` are those that left for being stale, each time they did."""

    setting: Setting
    workload: Workload
    trained: int = 0
    taken: int = 0
    left: list[SimGroup] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)
    _waiting: dict[int, SimGroup] = field(default_factory=dict)
    _in_flight: dict[int, SimGroup] = field(default_factory=dict)
    _ready: dict[int, SimGroup] = field(default_factory=dict)
    _next: int = 0
    _held_since_s: float | None = None

    @property
    def per_version(self) -> int:
        """Groups that make a version."""
        return self.workload.groups_per_step * self.setting.steps_per_version

    def admits(self) -> int | None:
        """The ordinal that would be started next, None while nobody may start."""
        ordinal = min(self._waiting) if self._waiting else self._next
        window = staleness.window(self.setting.limit, self.per_version)
        return ordinal if staleness.admits(self._ahead(ordinal), self.taken, window) else None

    def reserve(self, ordinal: int, episodes: list[EpisodeDraw]) -> SimGroup:
        """Start the group of an ordinal that `admits` gave; `episodes` are those of a new one."""
        group = self._waiting.pop(ordinal, None)
        start_from = staleness.start_from(
            self.trained, self._ahead(ordinal), self.taken, self.per_version, self.setting.limit
        )
        if group is None:
            group, self._next = SimGroup(ordinal, episodes), ordinal + 1
            insort(self._open, ordinal)
        group.begin(start_from)
        self._in_flight[ordinal] = group
        return group

    def put(self, group: SimGroup) -> None:
        """A group is whole."""
        del self._in_flight[group.ordinal]
        self._ready[group.ordinal] = group
        if self._is_late(group):
            self._leave(group)

    def advance(self, trained: int) -> None:
        """A version is trained."""
        self.trained, self.taken = trained, 0

    def lease(self, now_s: float) -> list[SimGroup] | None:
        """Take a batch; None: not now."""
        for group in [group for group in self._ready.values() if self._is_late(group)]:
            self._leave(group)
        count = self.workload.groups_per_step
        chosen = self._chosen(count)
        if len(chosen) < count:
            return None
        if self._must_wait(count):
            self._held_since_s = now_s if self._held_since_s is None else self._held_since_s
            if now_s - self._held_since_s < self.workload.wait_deadline_s:
                return None
        self._held_since_s = None
        for group in chosen:
            del self._ready[group.ordinal]
            self._close(group.ordinal)
        self.taken += count
        return chosen

    def _chosen(self, count: int) -> list[SimGroup]:
        if self.workload.order == "oldest":
            return sorted(self._ready.values(), key=lambda group: (group.oldest, group.ordinal))[:count]
        return [self._ready[ordinal] for ordinal in self._open[:count] if ordinal in self._ready]

    def _must_wait(self, count: int) -> bool:
        if self.setting.policy == "drop" or self.workload.order != "oldest":
            return False
        last = [
            sum(staleness.last_chance(version, self.trained, self.setting.limit) for version in versions)
            for versions in (
                [group.oldest for group in self._ready.values()],
                [group.told for group in self._in_flight.values()],
            )
        ]
        remaining = max(self.per_version - self.taken, count)
        return staleness.must_wait(last[0], last[1], count, remaining)

    def _is_late(self, group: SimGroup) -> bool:
        oldest = staleness.oldest_allowed(self.trained, self.setting.limit)
        return self.workload.on_stale != "mask" and group.oldest < oldest

    def _leave(self, group: SimGroup) -> None:
        self.left.append(group)
        group.num_stale += 1
        del self._ready[group.ordinal]
        if self.workload.on_stale == "resubmit" and group.num_stale <= self.workload.max_stale:
            self._waiting[group.ordinal] = group
        else:
            self._close(group.ordinal)

    def _close(self, ordinal: int) -> None:
        del self._open[bisect_left(self._open, ordinal)]

    def _ahead(self, ordinal: int) -> int:
        return bisect_left(self._open, ordinal)
