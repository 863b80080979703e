"""Faults of the server and of what it keeps: killed, frozen, its tail lost, payloads damaged; and its operator."""

import shutil
import signal
from collections.abc import Callable, Generator

from tests.support.soak import append_only, processes
from tests.support.soak.cluster import MAIN
from tests.support.soak.scene import HITS, LOOK_S, Condition, Scene, Steps, more, until_left
from tests.support.soak.settings import prompt


def kill_redis(scene: Scene) -> Steps:
    """kill -9, and back after a moment."""
    scene.cluster.server.kill()
    yield scene.rng.uniform(0.0, 0.8)
    scene.cluster.server.start()


def freeze_redis(scene: Scene) -> Steps:
    scene.cluster.server.freeze()
    yield scene.rng.uniform(0.1, 0.8)
    scene.cluster.server.thaw()


def lose_lease(scene: Scene) -> Steps:
    """The machine of the server loses power: nothing had been synced since the last batches were ready."""
    cluster = scene.cluster
    yield Condition("a trainer works", lambda: cluster.recovered(cluster.members.get(MAIN)))
    trainer, enough = cluster.members[MAIN], 2 * cluster.settings.groups_per_step
    trainer.signal(signal.SIGSTOP)  # so that batches pile up
    yield Condition("two batches are ready", lambda: scene.buffer.counts()["ready"] >= enough)
    durable, trained = append_only.mark(cluster.server.directory), more(cluster.journal, "trained", by=2)
    trainer.signal(signal.SIGCONT)
    yield Condition("they are trained, to be forgotten", trained)
    yield from _lose(scene, durable)


def lose_commit(scene: Scene) -> Steps:
    """The machine of the server loses power, and forgets a commit and more than a version."""
    durable, journal = append_only.mark(scene.cluster.server.directory), scene.cluster.journal
    committed, trained = more(journal, "committed"), more(journal, "trained", by=4)
    yield Condition("something is trained and committed, to be forgotten", lambda: committed() and trained())
    yield from _lose(scene, durable)


def lose_recover(scene: Scene) -> Steps:
    """The server forgets the branch of a trainer that has just opened it: that trainer must find itself behind."""
    yield from until_left(scene, processes.BEHIND, lambda: _lose_recover(scene))


def _lose_recover(scene: Scene) -> Steps:
    cluster = scene.cluster
    durable, new = append_only.mark(cluster.server.directory), cluster.new_trainer()
    yield Condition("another trainer has a branch", new)
    lost = cluster.members[MAIN]
    if (yield from _lose(scene, durable)):
        yield Condition("the trainer of the lost branch leaves", lambda: lost.code is not None)


def lose_recover_of_frozen(scene: Scene) -> Steps:
    """As before, but that trainer is frozen, and the next one opens its branch again before it wakes up."""
    cluster, halt = scene.cluster, scene.cluster.settings.halt
    halt.touch()
    durable, new = append_only.mark(cluster.server.directory), cluster.new_trainer()
    yield Condition("another trainer has a branch", new)
    halt.unlink()
    yield from _lose(scene, durable)
    old, next_one = cluster.replace_trainer()
    yield Condition("the next trainer has a branch", lambda: cluster.recovered(next_one) or next_one.code is not None)
    old.signal(signal.SIGCONT)
    yield Condition("the frozen trainer leaves", lambda: old.code is not None)
    yield LOOK_S
    if cluster.journal.by_who[old.who, "trained"]:
        cluster.violations.append(f"{old.who}, whose branch was lost and opened again by {next_one.who}, has trained")


def lose_everything(scene: Scene) -> Steps:
    """The server comes back empty: all but the newest checkpoint's past is played again."""
    cluster = scene.cluster
    behind = more(cluster.journal, "behind")
    cluster.server.kill()
    shutil.rmtree(cluster.server.directory / "appendonlydir")
    yield scene.rng.uniform(0.0, 0.5)
    cluster.server.start()
    yield Condition("a trainer finds itself behind, or a new one has a branch", lambda: behind() or _has_branch(scene))


def _has_branch(scene: Scene) -> bool:
    return scene.buffer.audit().branch > 0


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
    for _ in range(HITS):
        books = scene.buffer._store.books()
        if keys := [books.cards[o].key for o in sorted(books.ready)]:
            _hit(scene, scene.rng.choice(keys), change)
        yield Condition("trainers read on", more(journal, "trained", "corrupt_payload"))
        if journal.counts["corrupt_payload"] > before:
            return
    scene.cluster.violations.append(f"{HITS} payloads were damaged and no trainer met one of them")


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
