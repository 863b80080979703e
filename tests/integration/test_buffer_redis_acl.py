"""The generated ACL file on a real server: each role can do its walk. What it is denied: test_buffer_redis_denials."""

from collections.abc import Iterator

import pytest

from buffer import Leased, ServerRefused, pack
from buffer.acl import WEIGHT_LOG
from tests.support.groups import group_for, partials
from tests.support.guarded_redis import ORIGIN, RUN, GuardedRedis, claimed, guarded_redis
from weightsync.acks import Vitals
from weightsync.log import redis as redis_log
from weightsync.log.base import Pin
from weightsync.log.records import Part, Upload, VersionRecord
from weightsync.orders import Adoption, Order
from weightsync.transport.base import part_key, run_prefix, upload_prefix
from weightsync.transport.redis import RedisTransport


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedRedis]:
    # A host by itself, and a rollout user that is none, are the narrower rights; `rollout` with hosts is their union.
    with guarded_redis(hosts_apart=True) as server:
        yield server


@pytest.fixture
def guarded(server: GuardedRedis) -> Iterator[GuardedRedis]:
    yield server
    server.clean()


# Walks


def test_trainer_and_workers_train_evaluate_and_commit_with_a_user_each(guarded: GuardedRedis) -> None:
    trainer, worker, branch = guarded.begun()
    version = pack(branch, 0)
    hints = trainer.hints("ready")
    parked = claimed(worker)
    worker.park(parked, partials(version))
    worker.abandon(parked)
    again = claimed(worker)
    assert worker.fetch_partials(again) is not None
    worker.renew(again, version, 3)
    worker.put(again, group_for(again, version))
    other = claimed(worker)
    worker.put(other, group_for(other, version))
    lost = claimed(worker)
    worker.put(lost, group_for(lost, version), filtered="zero_variance")
    dead = claimed(worker)
    assert worker.fail(dead, "reward_failed") == "dead"
    assert hints.wait(5)
    worker.sweep()
    worker.report("w", {"tokens": 1.0})
    batch = trainer.lease(branch, 0, 1, 2)
    assert isinstance(batch, Leased)
    groups = [trainer.fetch(entry).ordinal for entry in batch.entries]
    trainer.give_back(branch, [groups[1]], "corrupt_payload")
    trainer.advance(branch, 1, limit=1, groups_per_version=2)
    trainer.open_evaluation(pack(branch, 1), num_prompts=1, group_size=1)
    held_out = worker.evaluation()
    assert held_out is not None
    played = claimed(held_out)
    held_out.put(played, group_for(played, pack(branch, 1)))
    trainer.close_evaluation()
    trainer.commit(branch, trainer.ledger(branch, 1, groups[:1]))
    trainer.sweep()
    assert trainer.audit(payloads=True).ok
    trainer.stop()
    assert worker.stopped()
    trainer.recover("m", trainer.ledger(branch, 1, groups[:1]), number=1, limit=1, groups_per_version=2)
    for one in (trainer, worker):
        one.close()


def test_the_operator_looks_pauses_and_tends_dead_letters(guarded: GuardedRedis) -> None:
    trainer, worker, branch = guarded.begun()
    for _ in range(2):
        claim = claimed(worker)
        worker.put(claim, group_for(claim, pack(branch, 0)))
    batch = trainer.lease(branch, 0, 1, 2)
    assert isinstance(batch, Leased)
    trainer.give_back(branch, [entry.ordinal for entry in batch.entries], "corrupt_payload")
    operator = guarded.buffer("operator")
    assert [letter.ordinal for letter in operator.dead_letters()] == [0, 1]
    operator.pause()
    operator.resume()
    operator.stop()
    operator.resume()
    assert operator.purge([0]) == (0,)
    assert operator.resubmit([0, 1]) == (0, 1)
    operator.sweep()
    assert operator.counts()["waiting"] == 2
    assert operator.status().run == RUN
    assert operator.audit(payloads=True).ok
    assert not operator.hints().wait(0.01)
    log = guarded.log("operator")
    assert (log.records(), dict(log.servers()), log.needs(), log.wish()) == ([], {}, [], "serve")
    for one in (trainer, worker, operator, log):
        one.close()


def test_weights_go_from_the_trainer_to_hosts_and_workers_see_them(guarded: GuardedRedis) -> None:
    trainer, host, worker = guarded.log("trainer"), guarded.log("host"), guarded.log("rollout")
    parts = {user: RedisTransport(guarded.url(user), RUN) for user in ("trainer", "host")}
    trainer.flip(None, ORIGIN)
    trainer.claim(1)
    upload = Upload(pack(1, 0), 0, "n1", "plan", (Part(0, 0, 5),))
    key = part_key(upload_prefix(RUN, upload), 0, 0)
    parts["trainer"].put_part(key, [memoryview(b"words")], deadline_s=10)
    trainer.put_document("layout:l", b"layout")
    watch = host.watch(("head",))
    trainer.flip(0, VersionRecord(pack(1, 0), 0, "n1", "layout", 7, upload, (0, 1), None, None, 10, 1000))
    assert watch.wait(5)
    target = bytearray(5)
    parts["host"].get_part_into(key, memoryview(target), deadline_s=10)
    assert (bytes(target), host.document("layout:l"), host.wish()) == (b"words", b"layout", "serve")
    trainer.put_endpoint(1, 0, "tcp://trainer:1")
    assert host.endpoints() == {0: "tcp://trainer:1"}
    host.register("s0", "i0", "http://s0", 30)
    host.need("s0", "no path")
    assert [need.server for need in trainer.needs()] == ["s0"]
    trainer.answered(["s0"])
    host.put_ack("s0", "i0", pack(1, 0), 7, "serving")
    host.renew("s0", "i0")
    assert worker.acks()["s0"].version == pack(1, 0)
    assert [record.version for record in worker.records()] == [0, pack(1, 0)]
    assert worker.digest_of(pack(1, 0)) == 7
    reports = guarded.buffer("host")
    reports.report("s0", {"staged": 1.0})
    host.leave("s0", "i0")
    trainer.put_pin(1, Pin("s0", pack(1, 1)))
    assert host.pin() == Pin("s0", pack(1, 1))
    trainer.put_wish("sleep")
    trainer.prune(1, [0], [])
    assert parts["trainer"].delete(run_prefix(RUN)) == 1
    for one in (trainer, host, worker, *parts.values(), reports):
        one.close()


def test_an_operator_asks_hosts_and_takes_the_lost_off_the_list(guarded: GuardedRedis) -> None:
    operator, host, worker = guarded.log("operator"), guarded.log("host"), guarded.log("rollout")
    host.register("s0", "i0", "http://s0", 30)
    host.renew("s0", "i0", Vitals(1, 2, 3))
    host.put_state("s0", "i0", "failed", "why")
    host.register("lost", "i0", "http://lost", -1.0)
    assert operator.roster()["s0"].reason == "why"
    order = Order("leave", 1.0, "nonce")
    operator.put_order("s0", order)
    assert host.orders() == worker.orders() == {"s0": order}
    host.put_order("s0", None, obeyed=order)
    operator.put_adoption("s1", Adoption("http://s1", "machine"))
    assert set(worker.adoptions()) == {"s1"}, "serve-rollout starts hosts for them"
    operator.put_adoption("s1", None)
    operator.forget("lost")
    assert set(operator.roster()) == {"s0"}
    for one in (operator, host, worker):
        one.close()


# Names


def test_the_keys_of_weightsync_are_those_that_it_uses() -> None:
    assert set(WEIGHT_LOG) == set(redis_log._NAMES)
    assert run_prefix(RUN) == f"w:{RUN}:"


def test_a_pattern_of_runs_covers_each_of_them_and_no_other() -> None:
    with guarded_redis("exp-*", prefix="exp-") as server:
        for run in ("exp-1", "exp-two"):
            trainer, worker = server.buffer("exp-trainer", run), server.buffer("exp-rollout", run)
            branch = trainer.recover("n", None, number=0, limit=0, groups_per_version=1)
            trainer.open_evaluation(pack(branch, 0), num_prompts=1, group_size=1)
            trainer.close_evaluation()
            claim = claimed(worker)
            worker.put(claim, group_for(claim, pack(branch, 0)))
            log = server.log("exp-rollout", run)
            log.register("s0", "i0", "http://s0", 30)
            assert list(log.servers()) == ["s0"], "its hosts are of the same user"
        with pytest.raises(ServerRefused, match="buffer acl"):
            server.buffer("exp-trainer", "another").counts()
