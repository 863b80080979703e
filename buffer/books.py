"""The books of one run: where every ordinal is, as plain data, and the elementary moves that keep the books consistent.

The memory store works on them, the Redis store reads them out of its keys, `audit` checks them, and the property tests
compare those of both stores.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from buffer.draws import Draw, PassRate
from buffer.staleness import NEVER_STALE
from buffer.versions import effective

IN_FLIGHT, WAITING, READY, LEASED, DEAD = "in_flight", "waiting", "ready", "leased", "dead"
CONSUMED, FILTERED, DISCARDED = "consumed", "filtered", "discarded"
OPEN = (IN_FLIGHT, WAITING, READY)
HELD = (*OPEN, LEASED, DEAD)
CLOSED = (CONSUMED, FILTERED, DISCARDED)
STATES = (IN_FLIGHT, WAITING, READY, LEASED, CONSUMED, FILTERED, DISCARDED, DEAD)

TRAINED_STEP = -1
"""Step of a leased group that its lineage has trained already (Redis had lost that): it waits for the next commit."""

Range = tuple[int, int, int]
Fate = tuple[str, str]
"""(how tokens ended, data source); the fates are listed in `buffer.tokens`."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Sampled tokens of one data source, and the trajectories that they are in."""

    source: str = ""
    trajectories: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, source: str, sampled: Sequence[int]) -> "Spent":
        """sampled: tokens of each trajectory."""
        return cls(source, len(sampled), sum(sampled))


@dataclass(frozen=True, slots=True)
class Index:
    """What rank 0 plans by, without the payload. ranges: (branch, lowest, highest number) over the sampled tokens.

    tokens, sampled, rewards: per trajectory; all its tokens, those the policy sampled, and the reward or None.
    """

    num_bytes: int
    xxh3: str
    ranges: tuple[Range, ...]
    tokens: tuple[int, ...]
    sampled: tuple[int, ...]
    rewards: tuple[float | None, ...]
    data_source: str

    @property
    def spent(self) -> Spent:
        return Spent.of(self.data_source, self.sampled)

    @property
    def is_damaged(self) -> bool:
        """Whether its worker's words could not be read: then no payload fits it, and the group is made again."""
        return self.xxh3.startswith(DAMAGED)


DAMAGED = "none: "
"""How xxh3 begins in the place of an index that nobody can read; the rest says why."""

NO_INDEX = Index(0, "", (), (), (), (), "")


@dataclass(slots=True)
class Card:
    """What the books know of one ordinal that is not closed."""

    state: str
    attempt: int = 0
    failures: int = 0
    stales: int = 0
    excused: int = 0
    """Losses that cost no failure, because most of in_flight was lost at once."""
    poison: int = 0
    """How often its trainer died with it in the newest batch."""
    token: str = ""
    worker: str = ""
    since_ms: int = 0
    """When it was reserved; from `put` on, when it was put."""
    oldest: tuple[int, int] | None = None
    """The oldest version that its worker has reported, while in flight."""
    num_sampled: int = 0
    """Tokens that its worker has reported, while in flight."""
    key: str = ""
    index: Index = NO_INDEX
    parked_key: str = ""
    """Payload of the unfinished episodes that its next owner goes on from."""
    parked: Index = NO_INDEX
    reason: str = ""
    error: str = ""


@dataclass(slots=True)
class Books:
    """The whole ledger of one run. Every ordinal below next_ordinal is in exactly one of STATES."""

    record: dict[str, str] = field(default_factory=dict)
    branch: int = 0
    trained: int = 0
    limit: int = 0
    per_version: int = 0
    window: int = 0
    nonce: str = ""
    paused: bool = False
    stopped: bool = False
    num_stops: int = 0
    """How often somebody asked the run to stop: unlike `stopped`, it tells an old request from a new one."""
    evaluation: str = ""
    end: int = 0
    """Ordinals from here on are never started; 0: there is no end."""
    watermark: int = 0
    next_ordinal: int = 0
    resident_bytes: int = 0
    dead_bytes: int = 0
    next_position: int = 0
    """One more than the largest position that was drawn; see `buffer.draws`."""
    hold_step: int = -1
    hold_since_ms: int = 0
    swept_ms: int = 0
    cards: dict[int, Card] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    in_flight: dict[int, int] = field(default_factory=dict)
    """ordinal -> deadline of its claim, ms."""
    sampling: dict[int, int] = field(default_factory=dict)
    """ordinal -> effective number of its oldest token, for those in flight that have tokens."""
    waiting: set[int] = field(default_factory=set)
    ready: dict[int, int] = field(default_factory=dict)
    """ordinal -> effective number of the group."""
    leased: dict[int, int] = field(default_factory=dict)
    """ordinal -> step."""
    taken: set[int] = field(default_factory=set)
    dead: dict[int, int] = field(default_factory=dict)
    """ordinal -> when it died, ms."""
    dead_kept: dict[int, int] = field(default_factory=dict)
    """Those of `dead` whose payload is still there."""
    closed: dict[str, set[int]] = field(default_factory=lambda: {kind: set() for kind in CLOSED})
    """kind -> ordinals closed since the last commit."""
    below: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLOSED, 0))
    """kind -> how many of them were closed by a commit."""
    trash: set[str] = field(default_factory=set)
    """Payloads that nothing names any more and that somebody has yet to unlink."""
    reasons: dict[str, int] = field(default_factory=dict)
    sampled: int = 0
    """Sampled tokens that have come in, evaluations aside."""
    fates: dict[Fate, tuple[int, int]] = field(default_factory=dict)
    """fate -> (trajectories, sampled tokens) that ended so."""
    masked: dict[str, int] = field(default_factory=dict)
    """data source -> trained tokens that the lineage kept out of the loss."""
    evaluated: dict[Fate, tuple[int, int]] = field(default_factory=dict)
    """(label of the evaluation, data source) -> (trajectories, sampled tokens)."""
    forks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """branch -> (its parent, the number at which it left it)."""
    commons: dict[int, int] = field(default_factory=dict)
    """older branch -> deepest number it has in common with the current one."""
    draws: dict[int, Draw] = field(default_factory=dict)
    """ordinal -> its draw, of the newest buffer.max_draws."""
    pass_rates: dict[int, PassRate] = field(default_factory=dict)
    """prompt that was drawn -> its newest result: at most one for each row of the data set."""
    hints: list[str] = field(default_factory=list, compare=False)
    """What the running transition tells those who wait: "ready" (a group came in) or "room" (anything else)."""
    dumped: list[str] = field(default_factory=list, compare=False)
    """Payloads that the running transition put into the trash: its caller unlinks them."""

    def ahead(self, ordinal: int) -> int:
        """Open ordinals below this one."""
        return sum(other < ordinal for other in self.open)

    def charged_bytes(self, max_group_bytes: int) -> int:
        """The budget in use: real sizes of what is in, the largest size for all that may still come in."""
        return self.resident_bytes + (len(self.in_flight) + len(self.waiting)) * max_group_bytes

    def effective(self, branch: int, number: int) -> int:
        """Effective number of a version. A branch that the books do not know shares nothing but the root."""
        return number if branch == self.branch else effective(number, self.commons.get(branch, 0))

    def oldest_effective(self, ranges: Iterable[Range]) -> int:
        """Smallest effective number over the ends of the ranges; on a dead branch the highest may be the farthest."""
        return min((self.effective(b, n) for b, low, high in ranges for n in (low, high)), default=NEVER_STALE)

    def count_reason(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def spend(self, fate: str, spent: Spent) -> None:
        """Sampled tokens that are in have ended so."""
        if spent.trajectories or spent.tokens:
            trajectories, tokens = self.fates.get((fate, spent.source), (0, 0))
            self.fates[fate, spent.source] = (trajectories + spent.trajectories, tokens + spent.tokens)

    def waste(self, fate: str, spent: Spent) -> None:
        """Sampled tokens that never came in as a group have ended so."""
        self.sampled += spent.tokens
        self.spend(fate, spent)

    def leave(self, ordinal: int, card: Card) -> None:
        """Take the ordinal out of the sets of its state; the caller puts it into those of the next."""
        if card.state == IN_FLIGHT:
            del self.in_flight[ordinal]
            del self.claims[card.token]
            self.sampling.pop(ordinal, None)
        elif card.state == WAITING:
            self.waiting.remove(ordinal)
        elif card.state == READY:
            del self.ready[ordinal]
        elif card.state == LEASED:
            del self.leased[ordinal]
        else:
            del self.dead[ordinal]
            if self.dead_kept.pop(ordinal, None) is not None:
                self.dead_bytes -= card.index.num_bytes
                self.resident_bytes += card.index.num_bytes
        self.open.discard(ordinal)

    def wait(self, ordinal: int, card: Card) -> None:
        """-> waiting. The payload goes, the counts and what was parked stay."""
        self.leave(ordinal, card)
        self.discard_payload(card)
        card.state, card.oldest, card.num_sampled = WAITING, None, 0
        self.waiting.add(ordinal)
        self.open.add(ordinal)

    def make_ready(self, ordinal: int, card: Card) -> None:
        """-> ready, ordered by the effective number that its versions have now."""
        self.leave(ordinal, card)
        card.state = READY
        self.ready[ordinal] = self.oldest_effective(card.index.ranges)
        self.open.add(ordinal)

    def hold(self, ordinal: int, card: Card, step: int) -> None:
        """-> leased."""
        self.leave(ordinal, card)
        card.state = LEASED
        self.leased[ordinal] = step

    def close(self, ordinal: int, card: Card, kind: str) -> None:
        """-> consumed, filtered or discarded. The card goes; the caller has said how its tokens ended."""
        self.leave(ordinal, card)
        self.discard_payload(card)
        self.discard_parked(card)
        del self.cards[ordinal]
        self.closed[kind].add(ordinal)

    def die(self, ordinal: int, card: Card, reason: str, error: str, now: int, max_dead_bytes: int) -> None:
        """-> dead, with its last payload. The cap drops payloads, oldest first, never what is known of the deaths."""
        self.leave(ordinal, card)
        self.spend(f"failed/{reason}", card.parked.spent)
        self.discard_parked(card)
        card.state, card.reason, card.error, card.oldest, card.num_sampled = DEAD, reason, error, None, 0
        self.dead[ordinal] = now
        if card.key:
            self.dead_kept[ordinal] = now
            self.resident_bytes -= card.index.num_bytes
            self.dead_bytes += card.index.num_bytes
        while self.dead_bytes > max_dead_bytes:
            oldest = min(self.dead_kept, key=lambda o: (self.dead_kept[o], o))
            del self.dead_kept[oldest]
            old = self.cards[oldest]
            self.dead_bytes -= old.index.num_bytes
            self.resident_bytes += old.index.num_bytes
            self.discard_payload(old)

    def dump(self, key: str) -> None:
        """A payload goes into the trash: whoever called the transition unlinks it, or the next sweep does."""
        self.trash.add(key)
        self.dumped.append(key)

    def discard_payload(self, card: Card) -> None:
        """Into the trash, and out of the budget."""
        if card.key:
            self.dump(card.key)
            self.resident_bytes -= card.index.num_bytes
            card.key, card.index = "", NO_INDEX

    def discard_parked(self, card: Card) -> None:
        """Into the trash. Parked bytes are part of what a claim or a waiting ordinal is charged."""
        if card.parked_key:
            self.dump(card.parked_key)
            card.parked_key, card.parked = "", NO_INDEX
