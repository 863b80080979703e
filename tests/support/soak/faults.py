"""What is done to a soak's processes: each fault is a generator that yields what it waits for.

A yielded number is a pause in seconds; a yielded condition is waited for, and its deadline is a violation. What a fault
holds no other fault may touch meanwhile, and what it shares nobody may hold: so that two faults do not undo each other,
and nobody asks a server that this thread has yet to start again.
"""

import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from random import Random

from buffer import ReplayBuffer
from tests.support.soak import append_only, processes
from tests.support.soak.cluster import MAIN, Cluster
from tests.support.soak.journal import Reader
from tests.support.soak.settings import prompt

_ATTEMPTS, _HITS, _LOOK_S = 8, 40, 0.2


@dataclass(frozen=True, slots=True)
class Condition:
    """Something to wait for."""

    what: str
    is_true: Callable[[], bool]


Steps = Iterator[float | Condition]


@dataclass(frozen=True, slots=True)
class Scene:
    """Where faults act."""

    cluster: Cluster
    buffer: ReplayBuffer
    rng: Random


def kill_producer(scene: Scene) -> Steps:
    scene.cluster.kill(scene.rng.choice(scene.cluster.producers))
    yield 0.0


def stop_producer(scene: Scene) -> Steps:
    """A notice of preemption: it parks what it has and gives it back; others, until somebody goes on from there."""
    cluster = scene.cluster
    continued = _more(cluster.journal, "continued")
    for _ in range(_HITS):
        if member := cluster.members.get(scene.rng.choice(cluster.producers)):
            member.signal(signal.SIGTERM)
        yield _LOOK_S
        if continued():
            return
    cluster.violations.append(f"{_HITS} producers were stopped and nobody went on from what they parked")


def freeze_producer(scene: Scene) -> Steps:
    """For longer than a claim lives: its groups are somebody else's when it wakes up."""
    cluster = scene.cluster
    member = cluster.members.get(scene.rng.choice(cluster.producers))
    if member is not None:
        member.signal(signal.SIGSTOP)
        yield cluster.settings.claim_s * scene.rng.uniform(1.1, 1.6)
        member.signal(signal.SIGCONT)


def preempt(scene: Scene) -> Steps:
    """All producers die at once and stay away until their claims have expired, which must cost nobody a failure."""
    cluster = scene.cluster
    yield Condition("every claim is of a living producer", lambda: _claimed_by_the_living(scene))
    cluster.held.update(cluster.producers)
    for slot in cluster.producers:
        cluster.kill(slot)
    yield Condition("the producers are dead", lambda: not cluster.members.keys() & set(cluster.producers))
    before = {o: (card.attempt, card.failures) for o, card in scene.buffer._store.books().cards.items()}
    held = set(scene.buffer._store.books().in_flight)
    yield Condition("the claims of the dead have expired", lambda: not scene.buffer._store.books().in_flight)
    cards = scene.buffer._store.books().cards
    paid = sorted(
        o for o in held & cards.keys() if cards[o].attempt == before[o][0] and cards[o].failures > before[o][1]
    )
    if paid:
        cluster.violations.append(f"a preempted cluster cost {len(paid)} of {len(held)} groups a failure: {paid}")
    cluster.held.difference_update(cluster.producers)


def _claimed_by_the_living(scene: Scene) -> bool:
    books, living = scene.buffer._store.books(), {member.who for member in scene.cluster.members.values()}
    return len(books.in_flight) > 2 and all(books.cards[o].worker in living for o in books.in_flight)


def kill_trainer(scene: Scene) -> Steps:
    scene.cluster.kill(MAIN)
    yield 0.0


def stop_trainer(scene: Scene) -> Steps:
    """SIGTERM: it writes a last checkpoint and leaves in good order."""
    if member := scene.cluster.members.get(MAIN):
        member.signal(signal.SIGTERM)
    yield 0.0


def freeze_trainer(scene: Scene) -> Steps:
    """`leased` has no deadline: nobody takes its groups."""
    if member := scene.cluster.members.get(MAIN):
        member.signal(signal.SIGSTOP)
        yield scene.rng.uniform(0.5, 2.5)
        member.signal(signal.SIGCONT)


def take_over_frozen(scene: Scene) -> Steps:
    """A trainer freezes anywhere, another takes over, the old one wakes up: it must find itself fenced."""
    yield from _until_left(scene, processes.FENCED, lambda: _take_over(scene, frozen=True))


def take_over_alive(scene: Scene) -> Steps:
    """A second trainer is started while the first one works."""
    yield from _until_left(scene, processes.FENCED, lambda: _take_over(scene, frozen=False))


def _take_over(scene: Scene, *, frozen: bool) -> Steps:
    cluster = scene.cluster
    yield Condition("a trainer works", lambda: cluster.recovered(cluster.members.get(MAIN)))
    yield scene.rng.uniform(0.0, 0.3)
    old, new = cluster.replace_trainer()
    if frozen:
        old.signal(signal.SIGSTOP)
    yield Condition("the new trainer has a branch", lambda: cluster.recovered(new) or new.code is not None)
    if frozen:
        yield scene.rng.uniform(0.0, 1.0)
        old.signal(signal.SIGCONT)
    yield Condition("the old trainer leaves", lambda: old.code is not None)


def _until_left(scene: Scene, code: int, attempt: Callable[[], Steps]) -> Steps:
    """Again until a trainer has left with `code`: one may die of a poisonous batch instead, or both did."""
    for _ in range(_ATTEMPTS):
        before = scene.cluster.exits[f"{MAIN}:{code}"]
        yield from attempt()
        yield _LOOK_S
        if scene.cluster.exits[f"{MAIN}:{code}"] > before:
            return
    scene.cluster.violations.append(f"in {_ATTEMPTS} attempts no trainer left with code {code}")


def kill_redis(scene: Scene) -> Steps:
    """kill -9, and back after a moment."""
    scene.cluster.server.kill()
    yield scene.rng.uniform(0.0, 0.8)
    scene.cluster.server.start()


def freeze_redis(scene: Scene) -> Steps:
    scene.cluster.server.freeze()
    yield scene.rng.uniform(0.1, 0.8)
    scene.cluster.server.thaw()


def lose_tail(scene: Scene) -> Steps:
    """The machine of the server loses power: what was written since the last fsync is gone."""
    durable = append_only.mark(scene.cluster.server.directory)
    yield scene.rng.uniform(0.1, 1.0)
    yield from _lose(scene, durable)


def lose_recover(scene: Scene) -> Steps:
    """The server forgets the branch of a trainer that has just opened it: that trainer must find itself behind."""
    yield from _until_left(scene, processes.BEHIND, lambda: _lose_recover(scene))


def _lose_recover(scene: Scene) -> Steps:
    cluster = scene.cluster
    durable, new = append_only.mark(cluster.server.directory), cluster.new_trainer()
    yield Condition("another trainer has a branch", new)
    lost = cluster.members[MAIN]
    if (yield from _lose(scene, durable)):
        yield Condition("the trainer of the lost branch leaves", lambda: lost.code is not None)


def lose_recover_of_frozen(scene: Scene) -> Steps:
    """As before, but that trainer is frozen, and the next one opens its branch again before it wakes up."""
    cluster = scene.cluster
    durable, new = append_only.mark(cluster.server.directory), cluster.new_trainer()
    yield Condition("another trainer has a branch", new)
    cluster.members[MAIN].signal(signal.SIGSTOP)
    yield from _lose(scene, durable)
    old, next_one = cluster.replace_trainer()
    yield Condition("the next trainer has a branch", lambda: cluster.recovered(next_one) or next_one.code is not None)
    old.signal(signal.SIGCONT)  # at once: the next one has trained nothing yet, so no number tells the two apart
    yield Condition("the frozen trainer leaves", lambda: old.code is not None)


def _lose(scene: Scene, durable: append_only.Mark) -> Generator[float | Condition, None, int]:
    server = scene.cluster.server
    server.kill()
    num_bytes = append_only.cut(server.directory, durable)
    scene.cluster.lost_bytes += num_bytes
    yield scene.rng.uniform(0.0, 0.5)
    server.start()
    return num_bytes


def damage_payload(scene: Scene) -> Steps:
    """Other bytes under the key of a ready group."""
    yield from _hit_payloads(scene, lambda blob: blob[: len(blob) // 2] + b"\x00damaged" + blob[len(blob) // 2 + 8 :])


def delete_payload(scene: Scene) -> Steps:
    yield from _hit_payloads(scene, lambda blob: None)


def _hit_payloads(scene: Scene, change: Callable[[bytes], bytes | None]) -> Steps:
    """Until a trainer has met one of them: it may also leave as stale before it is read."""
    journal = scene.cluster.journal
    before = journal.counts["corrupt_payload"]
    for _ in range(_HITS):
        books = scene.buffer._store.books()
        if keys := [books.cards[o].key for o in sorted(books.ready)]:
            _hit(scene, scene.rng.choice(keys), change)
        yield Condition("trainers read on", _more(journal, "trained", "corrupt_payload"))
        if journal.counts["corrupt_payload"] > before:
            return
    scene.cluster.violations.append(f"{_HITS} payloads were damaged and no trainer met one of them")


def _more(journal: Reader, *what: str) -> Callable[[], bool]:
    before = sum(journal.counts[one] for one in what)
    return lambda: sum(journal.counts[one] for one in what) > before


def _hit(scene: Scene, key: str, change: Callable[[bytes], bytes | None]) -> None:
    path = scene.cluster.settings.spilled / key[-2:] / key.replace(":", "~")
    scene.cluster.damaged.add(key)
    client = scene.cluster.server.client()
    found = client.get(key)
    if isinstance(found, bytes):
        changed = change(found)
        if changed is None:
            client.delete(key)
        else:
            client.set(key, changed, xx=True)
    elif path.exists():
        changed = change(path.read_bytes())
        if changed is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(changed)
    client.close()


def resubmit_dead(scene: Scene) -> Steps:
    """An operator plays dead prompts again, all but those that kill trainers."""
    settings = scene.cluster.settings
    yield Condition("something is dead", lambda: bool(scene.buffer.counts()["dead"]))
    letters = scene.buffer.dead_letters()
    chosen = [one.ordinal for one in letters if prompt(settings, one.ordinal).fate not in ("poison", "too_large")]
    scene.buffer.resubmit(scene.rng.sample(chosen, min(3, len(chosen))))


@dataclass(frozen=True, slots=True)
class Fault:
    """How to do it, how often it comes relative to others, and what it needs."""

    steps: Callable[[Scene], Steps]
    weight: float
    holds: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()


REDIS, TRAINER, PRODUCERS, PAYLOADS = (frozenset({name}) for name in ("redis", "trainer", "producers", "payloads"))
FAULTS = {
    "kill_producer": Fault(kill_producer, 8, shares=PRODUCERS),
    "stop_producer": Fault(stop_producer, 3, shares=PRODUCERS),
    "freeze_producer": Fault(freeze_producer, 3, shares=PRODUCERS),
    "preempt": Fault(preempt, 0.4, holds=PRODUCERS | TRAINER, shares=REDIS),
    "kill_trainer": Fault(kill_trainer, 3, shares=TRAINER),
    "stop_trainer": Fault(stop_trainer, 1, shares=TRAINER),
    "freeze_trainer": Fault(freeze_trainer, 1, holds=TRAINER),
    "take_over_frozen": Fault(take_over_frozen, 1.5, holds=TRAINER),
    "take_over_alive": Fault(take_over_alive, 1, holds=TRAINER),
    "kill_redis": Fault(kill_redis, 1.5, holds=REDIS),
    "freeze_redis": Fault(freeze_redis, 0.7, holds=REDIS),
    "lose_tail": Fault(lose_tail, 1, holds=REDIS),
    "lose_recover": Fault(lose_recover, 0.5, holds=REDIS | TRAINER),
    "lose_recover_of_frozen": Fault(lose_recover_of_frozen, 0.5, holds=REDIS | TRAINER),
    "resubmit_dead": Fault(resubmit_dead, 0.5, shares=REDIS),
    "damage_payload": Fault(damage_payload, 1, holds=PAYLOADS, shares=REDIS),
    "delete_payload": Fault(delete_payload, 1, holds=PAYLOADS, shares=REDIS),
}
"""Every kind comes at least once in a soak; the rest is drawn by weight."""
