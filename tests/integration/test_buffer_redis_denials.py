"""The generated ACL file on a real server: what each role is denied, and that a denied call has done nothing."""

import secrets
from collections.abc import Iterator

import pytest
import redis

from buffer import Ledger, ReplayBuffer, ServerRefused, pack
from buffer.acl import ADMIN, ROLES
from buffer.keys import evaluation_run, ledger_key
from tests.support.groups import group_for
from tests.support.guarded_redis import CONFIG, ORIGIN, RUN, GuardedRedis, claimed, guarded_redis
from weightsync.log import scripts as log_scripts
from weightsync.log.records import Upload
from weightsync.transport.base import part_key, run_prefix, upload_prefix


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedRedis]:
    # A host by itself, and a rollout user that is none, are the narrower rights; `rollout` with hosts is their union.
    with guarded_redis(hosts_apart=True) as server:
        yield server


@pytest.fixture
def guarded(server: GuardedRedis) -> Iterator[GuardedRedis]:
    yield server
    server.clean()


@pytest.mark.parametrize("role", ROLES)
def test_nobody_reaches_the_server_itself_or_what_is_not_of_the_run(guarded: GuardedRedis, role: str) -> None:
    with guarded.client(ADMIN) as admin:
        admin.set("foreign", "x")
        admin.hset(ledger_key("other", "run"), "branch", 1)
    everywhere = [
        *("FLUSHALL", "FLUSHDB", "CONFIG GET maxmemory", "CONFIG SET maxmemory 1", "KEYS *", "DEBUG SLEEP 0"),
        *("ACL LIST", "ACL SETUSER x", "SHUTDOWN NOSAVE", "MONITOR", "CLIENT LIST", "CLIENT KILL TYPE normal"),
        *("SAVE", "BGREWRITEAOF", "REPLICAOF NO ONE", "SWAPDB 0 1", "FUNCTION FLUSH", "SCRIPT FLUSH", "MODULE LIST"),
        *("PUBLISH a b", "SUBSCRIBE a", "GET foreign", "SET foreign y", "DEL foreign", "DUMP foreign"),
        *("RENAME foreign {guarded-1.a}:ready", "COPY foreign payload:guarded-1.a:0.1:00", "RANDOMKEY"),
        *("HGETALL {other}:run", "HSET {other}:run branch 2", "GET payload:other:0.1:00", "GET w:other:uploads"),
        *("MIGRATE 127.0.0.1 1 foreign 0 1", "SORT {guarded-1.a}:ready BY foreign", "CLUSTER RESET", "LATENCY RESET"),
    ]
    scripts = [
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", "foreign"),
        ("EVAL", "return redis.call('GET', 'foreign')", "0"),
        ("EVAL", "#!lua\nreturn redis.call('SET', 'foreign', 'z')", "1", ledger_key(RUN, "reports")),
        ("EVAL", "return redis.call('FLUSHALL')", "0"),
        ("EVAL", "return redis.call('HSET', KEYS[1], 'branch', 9)", "1", ledger_key("other", "run")),
        ("EVAL_RO", "return redis.call('HGETALL', KEYS[1])", "1", ledger_key("other", "run")),
    ]
    with guarded.client(role) as client:
        for command in (*(line.split() for line in everywhere), *scripts):
            with pytest.raises((redis.exceptions.NoPermissionError, redis.ResponseError)) as denied:
                client.execute_command(*command)
            assert "permission" in str(denied.value), (command, denied.value)
    with guarded.client(ADMIN) as admin:
        assert (admin.get("foreign"), admin.hget(ledger_key("other", "run"), "branch")) == (b"x", b"1")


def denied(guarded: GuardedRedis, role: str, *command: str | bytes) -> None:
    with (
        guarded.client(role) as client,
        pytest.raises((redis.exceptions.NoPermissionError, redis.ResponseError), match="permission"),
    ):
        client.execute_command(*command)


@pytest.mark.parametrize("role", ["rollout", "host", "operator"])
def test_only_the_trainer_writes_weights_and_moves_head(guarded: GuardedRedis, role: str) -> None:
    guarded.log("trainer").flip(None, ORIGIN)
    head, part = ledger_key(RUN, "w:head"), part_key(upload_prefix(RUN, Upload(1, 0, "n", "p", ())), 0, 0)
    flip = [
        ledger_key(RUN, f"w:{name}") for name in ("owner", "head", "records", "anchors", "nonces", "digests", "hints")
    ]
    for command in (
        ("SET", f"{part}:0", "words"),
        ("SADD", f"{run_prefix(RUN)}uploads", "x"),
        ("UNLINK", f"{part}:0"),
        ("SET", head, "00000000000000000001"),
        ("HSET", ledger_key(RUN, "w:records"), "00000000000000000001", "x"),
        ("HDEL", ledger_key(RUN, "w:nonces"), "00000000000000000000"),
        ("HSET", ledger_key(RUN, "w:endpoints"), "0", "9 tcp://mine:1"),
        ("EVAL", log_scripts.FLIP, "7", *flip, "1", "00000000000000000001", "", "record", "nonce", "digest", ""),
        ("EVAL", log_scripts.CLAIM, "2", ledger_key(RUN, "w:owner"), ledger_key(RUN, "w:hints"), "9"),
    ):
        denied(guarded, role, *command)
    assert guarded.log("trainer").records() == [ORIGIN]


def test_a_worker_takes_nothing_from_the_trainer_and_acknowledges_for_nobody(guarded: GuardedRedis) -> None:
    trainer, worker, branch = guarded.begun()
    for _ in range(2):
        claim = claimed(worker)
        worker.put(claim, group_for(claim, pack(branch, 0)))
    ledger = trainer.ledger(branch, 1, [])
    before = trainer._store.books()
    for call in (
        lambda: worker.lease(branch, 0, 1, 2),
        lambda: worker.commit(branch, ledger),
        lambda: worker.recover("mine", Ledger(), number=0, limit=0, groups_per_version=1),
        lambda: worker.give_back(branch, [0], "zero_variance"),
    ):
        with pytest.raises(ServerRefused, match=r"asyncrl buffer acl.*buffer\.acl"):
            call()
    for name in ("leased", "taken", "consumed", "forks", "commons"):
        denied(guarded, "rollout", "DEL", ledger_key(RUN, name))
    denied(guarded, "rollout", "HSET", ledger_key(RUN, "w:held"), "s0", "x")
    denied(guarded, "rollout", "HSET", ledger_key(RUN, "w:states"), "s0", "serving")
    assert trainer._store.books() == before, "what was denied has done nothing by halves"


def test_a_host_touches_neither_ledger_nor_payloads(guarded: GuardedRedis) -> None:
    _, worker, branch = guarded.begun()
    claim = claimed(worker)
    worker.put(claim, group_for(claim, pack(branch, 0)))
    host = guarded.buffer("host")
    before = worker._store.books()
    for call in (
        lambda: host.reserve("h"),
        host.sweep,
        host.pause,
        lambda: host.resubmit([0]),
        lambda: host.renew(claim),
    ):
        with pytest.raises(ServerRefused, match="buffer acl"):
            call()
    payload = f"payload:{RUN}:{claim.gid}:{claim.token}"
    for command in (("GET", payload), ("SET", payload, "x"), ("UNLINK", payload), ("SCAN", "0")):
        denied(guarded, "host", *command)
    for name in ("run", "cards", "ready", "trash", "tokens"):
        denied(guarded, "host", "DEL", ledger_key(RUN, name))
        denied(guarded, "host", "DEL", ledger_key(evaluation_run(RUN, "1.0"), name))
    assert worker._store.books() == before


def test_an_operator_makes_no_groups_and_no_weights(guarded: GuardedRedis) -> None:
    trainer, worker, branch = guarded.begun()
    claim = claimed(worker)
    worker.put(claim, group_for(claim, pack(branch, 0)))
    operator = guarded.buffer("operator")
    denied(guarded, "operator", "SET", f"payload:{RUN}:{claim.gid}:{claim.token}", "x")
    denied(guarded, "operator", "SET", f"payload:{RUN}:9.1:{secrets.token_hex(16)}", "x")
    denied(guarded, "operator", "HSET", ledger_key(RUN, "w:needs"), "s0", "x")
    before = trainer._store.books()
    for call in (
        lambda: operator.lease(branch, 0, 1, 1),
        lambda: operator.commit(branch, Ledger(branch=branch)),
        lambda: operator.recover("mine", None, number=0, limit=0, groups_per_version=1),
        lambda: operator.put(claim, group_for(claim, pack(branch, 0))),
    ):
        with pytest.raises(ServerRefused, match="buffer acl"):
            call()
    assert trainer._store.books() == before


def test_the_default_user_is_off(guarded: GuardedRedis) -> None:
    with pytest.raises(ServerRefused, match="refused the password"):
        ReplayBuffer.connect(f"unix://{guarded.server.socket}", RUN, CONFIG)
