"""The generated ACL file on a real server: each role can do its walk, and is denied what is not its business."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from buffer import BufferConfig, Claim, Leased, Ledger, ReplayBuffer, RunRecord, ServerRefused, pack
from buffer.acl import ADMIN, ROLES, WEIGHT_LOG, acl_file
from buffer.keys import evaluation_run, ledger_key
from tests.integration.test_buffer_lost_replies import partials
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for
from tests.support.redis_server import RedisServer, running_redis
from weightsync.log import VersionLog, open_log
from weightsync.log import redis as redis_log
from weightsync.log import scripts as log_scripts
from weightsync.log.records import Part, Upload, VersionRecord
from weightsync.transport.base import part_key, run_prefix, upload_prefix
from weightsync.transport.redis import RedisTransport

RUN = "guarded-1.a"
CONFIG = BufferConfig(claim_s=60, max_attempts=1, max_group_bytes=100_000, retry_s=5)
RECORD = RunRecord(schema=1, dataset="d41d8", seed=7, group_size=2, order="oldest", tokenizer="t0")
ORIGIN = VersionRecord(0, None, "origin", "layout", 1 << 63, model_dir="/models/start", num_words=1000)


class Guarded:
    """A server whose users are those of the generated file."""

    def __init__(self, server: RedisServer, passwords: dict[str, str]) -> None:
        self.server, self.passwords = server, passwords

    def url(self, user: str) -> str:
        return f"unix://{user}:{self.passwords[user]}@{self.server.socket}"

    def client(self, user: str) -> "redis.Redis":
        return redis.Redis(
            unix_socket_path=str(self.server.socket), username=user, password=self.passwords[user], protocol=2
        )

    def buffer(self, user: str) -> ReplayBuffer:
        return ReplayBuffer.connect(self.url(user), RUN, CONFIG)

    def log(self, user: str) -> VersionLog:
        return open_log(self.url(user), RUN)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    # A host by itself, and a rollout user that is not one, are the narrower rights; `rollout` with hosts is the union.
    text, passwords = acl_file(RUN, hosts_apart=True)
    path = tmp_path_factory.mktemp("acl") / "users.acl"
    path.write_text(text)
    with running_redis(options=("--aclfile", str(path), "--enable-debug-command", "yes")) as server:
        yield Guarded(server, passwords)


@pytest.fixture
def clean(guarded: Guarded) -> Iterator[Guarded]:
    yield guarded
    with guarded.client(ADMIN) as admin:
        for key in admin.scan_iter("*"):
            admin.unlink(key)


def begun(guarded: Guarded) -> tuple[ReplayBuffer, ReplayBuffer, int]:
    trainer, worker = guarded.buffer("trainer"), guarded.buffer("rollout")
    trainer.register(RECORD)
    worker.register(RECORD)
    branch = trainer.recover("n", None, number=0, limit=1, groups_per_version=2)
    return trainer, worker, branch


def claimed(worker: ReplayBuffer) -> Claim:
    claim = worker.reserve("w")
    assert isinstance(claim, Claim), claim
    return claim


# Walks


def test_trainer_and_workers_train_evaluate_and_commit_with_a_user_each(clean: Guarded) -> None:
    trainer, worker, branch = begun(clean)
    version = pack(branch, 0)
    hints = trainer.hints("ready")
    parked = claimed(worker)
    worker.park(parked, partials_of(version))
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


def test_the_operator_looks_pauses_and_tends_dead_letters(clean: Guarded) -> None:
    trainer, worker, branch = begun(clean)
    for _ in range(2):
        claim = claimed(worker)
        worker.put(claim, group_for(claim, pack(branch, 0)))
    batch = trainer.lease(branch, 0, 1, 2)
    assert isinstance(batch, Leased)
    trainer.give_back(branch, [entry.ordinal for entry in batch.entries], "corrupt_payload")
    operator = clean.buffer("operator")
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
    log = clean.log("operator")
    assert (log.records(), dict(log.servers()), log.needs(), log.wish()) == ([], {}, [], "serve")
    for one in (trainer, worker, operator, log):
        one.close()


def test_weights_go_from_the_trainer_to_hosts_and_workers_see_them(clean: Guarded) -> None:
    trainer, host, worker = clean.log("trainer"), clean.log("host"), clean.log("rollout")
    parts = {user: RedisTransport(clean.url(user), RUN) for user in ("trainer", "host")}
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
    host.register("s0", "i0", "http://s0", 30)
    host.need("s0", "no path")
    assert [need.server for need in trainer.needs()] == ["s0"]
    trainer.answered(["s0"])
    host.put_ack("s0", "i0", pack(1, 0), 7, "serving")
    host.renew("s0", "i0")
    assert worker.acks()["s0"].version == pack(1, 0)
    assert [record.version for record in worker.records()] == [0, pack(1, 0)]
    assert worker.digest_of(pack(1, 0)) == 7
    reports = clean.buffer("host")
    reports.report("s0", {"staged": 1.0})
    host.leave("s0", "i0")
    trainer.put_wish("sleep")
    trainer.prune(1, [0], [])
    assert parts["trainer"].delete(run_prefix(RUN)) == 1
    for one in (trainer, host, worker, *parts.values(), reports):
        one.close()


# Denials


@pytest.mark.parametrize("role", ROLES)
def test_nobody_reaches_the_server_itself_or_what_is_not_of_the_run(clean: Guarded, role: str) -> None:
    with clean.client(ADMIN) as admin:
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
    with clean.client(role) as client:
        for command in (*(line.split() for line in everywhere), *scripts):
            with pytest.raises((redis.exceptions.NoPermissionError, redis.ResponseError)) as denied:
                client.execute_command(*command)
            assert "permission" in str(denied.value), (command, denied.value)
    with clean.client(ADMIN) as admin:
        assert (admin.get("foreign"), admin.hget(ledger_key("other", "run"), "branch")) == (b"x", b"1")


def denied(clean: Guarded, role: str, *command: str | bytes) -> None:
    with (
        clean.client(role) as client,
        pytest.raises((redis.exceptions.NoPermissionError, redis.ResponseError), match="permission"),
    ):
        client.execute_command(*command)


@pytest.mark.parametrize("role", ["rollout", "host", "operator"])
def test_only_the_trainer_writes_weights_and_moves_head(clean: Guarded, role: str) -> None:
    clean.log("trainer").flip(None, ORIGIN)
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
        ("EVAL", log_scripts.FLIP, "7", *flip, "1", "00000000000000000001", "", "record", "nonce", "digest", ""),
        ("EVAL", log_scripts.CLAIM, "2", ledger_key(RUN, "w:owner"), ledger_key(RUN, "w:hints"), "9"),
    ):
        denied(clean, role, *command)
    assert clean.log("trainer").records() == [ORIGIN]


def test_a_worker_takes_nothing_from_the_trainer_and_acknowledges_for_nobody(clean: Guarded) -> None:
    trainer, worker, branch = begun(clean)
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
        denied(clean, "rollout", "DEL", ledger_key(RUN, name))
    denied(clean, "rollout", "HSET", ledger_key(RUN, "w:held"), "s0", "x")
    denied(clean, "rollout", "HSET", ledger_key(RUN, "w:states"), "s0", "serving")
    assert trainer._store.books() == before, "what was denied has done nothing by halves"


def test_a_host_touches_neither_ledger_nor_payloads(clean: Guarded) -> None:
    _, worker, branch = begun(clean)
    claim = claimed(worker)
    worker.put(claim, group_for(claim, pack(branch, 0)))
    host = clean.buffer("host")
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
        denied(clean, "host", *command)
    for name in ("run", "cards", "ready", "trash", "tokens"):
        denied(clean, "host", "DEL", ledger_key(RUN, name))
        denied(clean, "host", "DEL", ledger_key(evaluation_run(RUN, "1.0"), name))
    assert worker._store.books() == before


def test_an_operator_makes_no_groups_and_no_weights(clean: Guarded) -> None:
    trainer, worker, branch = begun(clean)
    claim = claimed(worker)
    worker.put(claim, group_for(claim, pack(branch, 0)))
    operator = clean.buffer("operator")
    denied(clean, "operator", "SET", f"payload:{RUN}:{claim.gid}:{claim.token}", "x")
    denied(clean, "operator", "SET", f"payload:{RUN}:9.1:{secrets.token_hex(16)}", "x")
    denied(clean, "operator", "HSET", ledger_key(RUN, "w:needs"), "s0", "x")
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


def test_the_default_user_is_off(guarded: Guarded) -> None:
    with pytest.raises(ServerRefused, match="refused the password"):
        ReplayBuffer.connect(f"unix://{guarded.server.socket}", RUN, CONFIG)


# Names


def test_the_keys_of_weightsync_are_those_that_it_uses() -> None:
    assert set(WEIGHT_LOG) == set(redis_log._NAMES)
    assert run_prefix(RUN) == f"w:{RUN}:"


def test_a_pattern_of_runs_covers_each_of_them_and_no_other(tmp_path: Path) -> None:
    text, passwords = acl_file("exp-*", prefix="exp-")
    path = tmp_path / "users.acl"
    path.write_text(text)
    with running_redis(options=("--aclfile", str(path))) as server:
        for run in ("exp-1", "exp-two"):
            url = f"unix://exp-trainer:{passwords['exp-trainer']}@{server.socket}"
            trainer = ReplayBuffer.connect(url, run, CONFIG)
            branch = trainer.recover("n", None, number=0, limit=0, groups_per_version=1)
            trainer.open_evaluation(pack(branch, 0), num_prompts=1, group_size=1)
            trainer.close_evaluation()
            worker_url = f"unix://exp-rollout:{passwords['exp-rollout']}@{server.socket}"
            worker = ReplayBuffer.connect(worker_url, run, CONFIG)
            claim = claimed(worker)
            worker.put(claim, group_for(claim, pack(branch, 0)))
            log = open_log(worker_url, run)
            log.register("s0", "i0", "http://s0", 30)
            assert list(log.servers()) == ["s0"], "its hosts are of the same user"
        with pytest.raises(ServerRefused, match="buffer acl"):
            ReplayBuffer.connect(url, "another", CONFIG).counts()


def partials_of(version: int):
    run = BufferRun(None)
    run.version = lambda: version  # type: ignore[method-assign,misc,assignment]
    return partials(run)
