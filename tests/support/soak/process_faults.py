"""Faults of producers and trainers: killed, stopped, frozen, preempted together, replaced while they live."""

import signal
import time

from tests.support.soak import checkpoints, processes
from tests.support.soak.cluster import MAIN
from tests.support.soak.scene import HITS, Condition, Scene, Steps, more, until_left


def kill_producer(scene: Scene) -> Steps:
    scene.cluster.kill(scene.rng.choice(scene.cluster.producers))
    yield 0.0


def stop_producer(scene: Scene) -> Steps:
    """A notice of preemption: it parks what it has and gives it back; others, until somebody goes on from there."""
    cluster = scene.cluster
    continued = more(cluster.journal, "continued")
    for _ in range(HITS):
        going_on = more(cluster.journal, "continued", "trained")
        cluster.stop(scene.rng.choice(cluster.producers))
        yield Condition("somebody goes on", going_on)
        if continued():
            return
    cluster.violations.append(f"{HITS} producers were stopped and nobody went on from what they parked")


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
    yield Condition("every claim is of a living producer, and fresh", lambda: _claimed_by_the_living(scene))
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
    """And renewed just now: after a lost tail a producer may have forgotten a claim that the server remembers."""
    books, living = scene.buffer._store.books(), {member.who for member in scene.cluster.members.values()}
    fresh_ms = 1000 * (time.time() + scene.cluster.settings.claim_s * 0.6)
    return len(books.in_flight) > 2 and all(
        books.cards[o].worker in living and deadline > fresh_ms for o, deadline in books.in_flight.items()
    )


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
    yield from until_left(scene, processes.FENCED, lambda: _take_over(scene, frozen=True))


def take_over_alive(scene: Scene) -> Steps:
    """A second trainer is started while the first one works."""
    yield from until_left(scene, processes.FENCED, lambda: _take_over(scene, frozen=False))


def _take_over(scene: Scene, *, frozen: bool) -> Steps:
    cluster = scene.cluster
    yield scene.rng.uniform(0.0, 0.3)
    # One that is replaced before it has opened its branch would open it later, and rightly fence the other.
    yield Condition("a trainer works", lambda: cluster.recovered(cluster.members.get(MAIN)))
    old, new = cluster.replace_trainer()
    if frozen:
        old.signal(signal.SIGSTOP)
    yield Condition("the new trainer has a branch", lambda: cluster.recovered(new) or new.code is not None)
    if frozen:
        yield scene.rng.uniform(0.0, 1.0)
        old.signal(signal.SIGCONT)
    yield Condition("the old trainer leaves", lambda: old.code is not None)


def lose_checkpoint(scene: Scene) -> Steps:
    """The trainer dies, and its newest checkpoints are lost with it: what was committed with them is trained again."""
    cluster, directory = scene.cluster, scene.cluster.settings.checkpoints
    yield Condition("some checkpoints are committed", more(cluster.journal, "committed", by=3))
    cluster.held.add(MAIN)
    cluster.kill(MAIN)
    yield Condition("the trainer is dead", lambda: MAIN not in cluster.members)
    for _ in range(scene.rng.randint(1, 3)):
        if tip := checkpoints.newest(directory):
            (directory / str(tip.name)).unlink()
    cluster.held.discard(MAIN)
