"""The buffer on a real Redis Cluster: the ledger in one slot, payloads spread, slots that move, nodes that die."""

import re
import secrets
from collections.abc import Iterator
from threading import Thread
from time import monotonic

import pytest
from redis.crc import key_slot

from buffer import BufferConfig, Claim, Entry, Leased, NotAdmitted, ReplayBuffer, ServerRefused, pack
from buffer.acl import acl_file
from buffer.keys import ledger_key, payload_key
from buffer.redis_store import RedisServer
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for
from tests.support.ports import reserved_ports
from tests.support.redis_cluster import ClusterNode, RedisCluster, running_cluster, until
from tests.support.redis_server import RedisServer as Server
from tests.support.redis_server import running_redis


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with running_cluster(3, num_replicas=1) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: RedisCluster) -> Iterator[BufferRun]:
    run = BufferRun(cluster)
    run.set(retry_s=15)
    run.recover(limit=3, per_version=4)
    yield run
    run.close()


def payloads(cluster: RedisCluster, run: BufferRun) -> dict[int, list[str]]:
    return cluster.keys(f"payload:{run.name}*")


# Spread


def test_a_run_goes_from_reserve_to_commit_with_its_ledger_on_one_node_and_its_payloads_on_several(
    cluster: RedisCluster, run: BufferRun
) -> None:
    run.make(12)
    ledgers = {port for port, keys in cluster.keys(f"{{{run.name}}}*").items() if keys}
    assert ledgers == {cluster.holder(ledger_key(run.name, "run")).port}
    assert sum(bool(keys) for keys in payloads(cluster, run).values()) > 1
    trained = run.train()
    run.buffer.give_back(run.branch, [run.lease()[0].ordinal], "corrupt_payload")
    run.checkpoint(trained)
    assert run.counts("consumed", "leased", "waiting", "ready") == (4, 3, 1, 4)
    run.audit()
    run.recover(limit=3, per_version=4, ledger=run.checkpoint([]), number=1)
    assert run.counts("consumed", "leased", "waiting", "ready") == (4, 0, 1, 7)
    assert sum(len(keys) for keys in payloads(cluster, run).values()) == 7
    run.audit()


def test_connect_checks_every_node_and_leaves_nothing_behind(cluster: RedisCluster) -> None:
    before = cluster.keys("*")
    ReplayBuffer.connect(cluster.url, "demo", BufferConfig(retry_s=5)).close()
    assert cluster.keys("*") == before
    last = cluster.masters[-1]
    last.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ServerRefused, match=rf"node 127\.0\.0\.1:{last.port} has maxmemory-policy allkeys-lru"):
            ReplayBuffer.connect(cluster.url, "demo", BufferConfig(retry_s=5))
    finally:
        last.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("form", "message"),
    [("{url}/1", "database 0 only"), ("unix://{socket}", "redis://host:port of a node")],
)
def test_an_address_that_a_cluster_cannot_have_is_refused(cluster: RedisCluster, form: str, message: str) -> None:
    url = form.format(url=cluster.url, socket=cluster.masters[0].server.socket)
    with pytest.raises(ServerRefused, match=message):
        ReplayBuffer.connect(url, "demo", BufferConfig(retry_s=5))


def test_several_servers_that_are_no_cluster_are_refused() -> None:
    with running_redis(options=("--port", "0")) as single, pytest.raises(ServerRefused, match=r"redis\+sentinel://"):
        # A socket has one path, so two hosts are written by their port: the first that answers decides.
        ReplayBuffer.connect(_by_port(single) + ",127.0.0.1:1", "demo", BufferConfig(retry_s=5))


def test_strays_are_swept_from_every_node(cluster: RedisCluster, run: BufferRun) -> None:
    run.make(3)
    dead = [payload_key(run.name, f"{900 + i}.1", secrets.token_hex(16), spilled=False) for i in range(48)]
    for key in dead:
        node = cluster.holder(key)
        node.ask("SET", f"{{{key}}}", b"x")  # the same slot
        node.ask("RESTORE", key, 0, node.ask("DUMP", f"{{{key}}}"), "IDLETIME", 1000)
        node.ask("DEL", f"{{{key}}}")
    assert all(len(keys) > 0 for keys in payloads(cluster, run).values())
    for _ in range(max(len(keys) for keys in cluster.keys("*").values()) // 50 + 2):
        run.buffer.sweep()
    left = {key for keys in payloads(cluster, run).values() for key in keys}
    assert left.isdisjoint(dead)
    assert len(left) == 3


def test_nodes_that_forgot_their_scripts_are_given_them_again(cluster: RedisCluster, run: BufferRun) -> None:
    run.make(1)
    for node in cluster.masters:
        node.ask("SCRIPT", "FLUSH")
    assert run.make(1)[0].ordinal == 1


def test_users_of_the_acl_file_play_and_train_on_a_cluster(cluster: RedisCluster) -> None:
    name = f"guarded-{secrets.token_hex(4)}"
    text, passwords = acl_file(name, prefix=f"{name}-")
    for line in text.splitlines()[1:]:
        # Words, and selectors in parentheses, which are one argument each.
        _, user, *rules = re.findall(r"\([^)]*\)|\S+", line)
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", user, *rules)
    place = cluster.url.removeprefix("redis://")
    trainer, worker = (
        ReplayBuffer.connect(f"redis://{user}:{passwords[user]}@{place}", name, BufferConfig(retry_s=5))
        for user in (f"{name}-trainer", f"{name}-rollout")
    )
    branch = trainer.recover("n", None, number=0, limit=1, groups_per_version=4)
    for _ in range(4):
        claim = worker.reserve("w")
        assert isinstance(claim, Claim)
        worker.put(claim, group_for(claim, pack(branch, 0)))
    worker.sweep()
    batch = trainer.lease(branch, 0, 1, 4)
    assert isinstance(batch, Leased)
    assert [trainer.fetch(entry).ordinal for entry in batch.entries] == [0, 1, 2, 3]
    trainer.commit(branch, trainer.ledger(branch, 1, range(4)))
    assert trainer.audit(payloads=True).ok
    with pytest.raises(ServerRefused, match="buffer acl"):
        worker.lease(branch, 0, 2, 1)
    for one in (trainer, worker):
        one.close()


# Slots that move


def test_a_payload_is_found_and_deleted_while_its_slot_moves(cluster: RedisCluster, run: BufferRun) -> None:
    run.make(4)
    entry = run.lease()[0]
    slot, source = key_slot(entry.key.encode()), cluster.holder(entry.key)
    target = next(node for node in cluster.masters if node is not source)
    cluster.begin_move(slot, source, target)
    assert run.buffer.fetch(entry).ordinal == entry.ordinal
    cluster.move_keys(slot, source, target)
    assert run.buffer.fetch(entry).ordinal == entry.ordinal, "ASK: the old holder sends to the new one"
    other = f"{{{entry.key}}}"
    server = RedisServer(cluster.url, 5)
    server.set_blob(other, b"written meanwhile")
    assert server.get_blob(other) == b"written meanwhile"
    assert server.idle_s([entry.key, other]).keys() == {entry.key, other}
    cluster.end_move(slot, target)
    assert run.buffer.fetch(entry).ordinal == entry.ordinal, "MOVED: the map is patched"
    server.unlink([other, entry.key])
    assert server.get_blob(other) is None
    server.close()
    assert entry.key not in payloads(cluster, run)[target.port]


def test_a_transition_waits_out_a_move_of_the_ledgers_slot(cluster: RedisCluster, run: BufferRun) -> None:
    claim = run.claim()
    key = ledger_key(run.name, "run")
    slot, source = key_slot(key.encode()), cluster.holder(key)
    target = next(node for node in cluster.masters if node is not source)
    cluster.begin_move(slot, source, target)
    cluster.move_keys(slot, source, target)
    answers: list[str] = []
    thread = Thread(target=lambda: answers.append(run.buffer.put(claim, group_for(claim, run.version()))))
    thread.start()
    refused = "errorstat_TRYAGAIN"
    until(lambda: refused in target.ask("INFO", "errorstats").decode(), "the put to be told to try again")
    assert answers == [], "a script that names keys of two nodes can run on neither"
    cluster.end_move(slot, target)
    thread.join(20)
    assert answers == ["ready"]
    assert cluster.holder(key) is target
    run.audit()


# Nodes that die


def test_a_node_that_is_killed_and_comes_back_in_mid_run_loses_nothing(cluster: RedisCluster) -> None:
    run = BufferRun(cluster)
    run.set(retry_s=30)
    run.recover(limit=3, per_version=16)
    run.make(6)
    victim = cluster.masters[2]
    claim = next(
        claim
        for claim in run.claims()
        if cluster.holder(payload_key(run.name, claim.gid, claim.token, spilled=False)) is victim
    )
    victim.server.kill()
    answers: list[str] = []
    thread = Thread(target=lambda: answers.append(run.buffer.put(claim, group_for(claim, run.version()))))
    thread.start()
    until(lambda: cluster.masters[0].facts()["cluster_state"] == "fail", "the others to notice")
    assert answers == []
    victim.server.start()
    thread.join(30)
    assert answers == ["ready"]
    cluster.await_joined()
    groups = [run.buffer.fetch(entry).ordinal for entry in run.lease(7)]
    assert groups == [0, 1, 2, 3, 4, 5, claim.ordinal]
    run.audit()
    run.close()


def test_a_replica_that_takes_over_is_found(cluster: RedisCluster) -> None:
    first, replica = cluster.masters[0], cluster.replicas[0]
    run = next(
        run for run in (BufferRun(cluster) for _ in range(64)) if cluster.holder(ledger_key(run.name, "run")) is first
    )
    run.set(retry_s=30)
    run.recover(limit=3, per_version=4)
    run.make(4)
    until(lambda: _offset(first) == _offset(replica), "the replica to have it all")
    first.server.kill()
    try:
        assert run.make(4)[0].ordinal == 4
        assert cluster.holder(ledger_key(run.name, "run")) is replica
        groups = [run.buffer.fetch(entry).ordinal for _ in range(2) for entry in _next_batch(run)]
        assert sorted(groups) == list(range(8))
        run.audit()
    finally:
        first.server.start()
        cluster.await_joined()
        run.close()


# Many


def test_64_producers_with_connections_of_their_own_share_every_group_exactly_once(cluster: RedisCluster) -> None:
    url = ",".join([cluster.url, *(f"127.0.0.1:{node.port}" for node in cluster.masters[1:])])
    config = BufferConfig(retry_s=30)
    name = f"many-{secrets.token_hex(4)}"
    trainer = ReplayBuffer.connect(url, name, config)
    branch = trainer.recover("n", None, number=0, limit=1, groups_per_version=64)
    failures: list[BaseException] = []

    def work(worker: str) -> None:
        try:
            buffer = ReplayBuffer.connect(url, name, config)
            while isinstance(claim := buffer.reserve(worker), Claim):
                buffer.put(claim, group_for(claim, pack(branch, 0)))
            assert isinstance(claim, NotAdmitted)
            buffer.close()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=work, args=(f"w{i}",)) for i in range(64)]
    for thread in threads:
        thread.start()
    deadline = monotonic() + 60
    for thread in threads:
        thread.join(deadline - monotonic())
    assert failures == []
    groups = []
    for number in range(2):
        batch = trainer.lease(branch, number, number + 1, 64)
        assert isinstance(batch, Leased)
        groups += [trainer.fetch(entry).ordinal for entry in batch.entries]
        trainer.advance(branch, number + 1, limit=1, groups_per_version=64)
    assert sorted(groups) == list(range(128))
    assert trainer.audit(payloads=True).ok
    trainer.close()


def _next_batch(run: BufferRun) -> tuple[Entry, ...]:
    batch = run.lease()
    run.number += 1
    run.advance()
    return batch


def _offset(node: ClusterNode) -> str:
    lines = node.ask("INFO", "replication").decode().split()
    return str(next(line for line in lines if line.startswith("master_repl_offset:")))


def _by_port(server: Server) -> str:
    with reserved_ports(1) as (port,):
        server.client().config_set("bind", "127.0.0.1")
        server.client().config_set("port", port)
    return f"redis://127.0.0.1:{port}"
