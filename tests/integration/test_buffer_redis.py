"""The buffer on a real server: what is refused at connect, what a full or foreign key does, and many users at once."""

from collections.abc import Iterator
from itertools import pairwise
from threading import Thread
from time import monotonic

import msgpack
import pytest

from buffer import (
    BufferConfig,
    BufferError,
    Claim,
    CorruptPayload,
    Leased,
    NotAdmitted,
    ReplayBuffer,
    ServerFull,
    ServerLost,
    ServerRefused,
    StalenessConfig,
    pack,
)
from buffer.keys import LEDGER_KEYS, ledger_key
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for
from tests.support.redis_server import RedisServer, running_redis

CONFIG = BufferConfig(retry_s=0.3)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def run(server: RedisServer) -> Iterator[BufferRun]:
    run = BufferRun(server).recover(limit=1, per_version=2)
    yield run
    run.close()


# At connect


def test_a_server_that_will_do_is_taken_and_left_as_it_was() -> None:
    with running_redis() as fresh:
        ReplayBuffer.connect(fresh.url, "demo", CONFIG).close()
        assert fresh.client().dbsize() == 0


def test_a_server_that_evicts_is_refused_with_the_fix() -> None:
    """B191."""
    with (
        running_redis(maxmemory="64mb", maxmemory_policy="allkeys-lru") as evicting,
        pytest.raises(ServerRefused, match="CONFIG SET maxmemory-policy noeviction"),
    ):
        ReplayBuffer.connect(evicting.url, "demo", CONFIG)


def test_a_wrong_or_missing_password_is_refused_and_not_shown() -> None:
    with running_redis(password="s3cret") as guarded:
        for url in (guarded.url.replace("s3cret", "wr0ng"), f"unix://{guarded.socket}"):
            with pytest.raises(ServerRefused, match="password") as refused:
                ReplayBuffer.connect(url, "demo", CONFIG)
            assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize("rights", [("~*", "+@read", "+@connection", "+info"), ("~*", "+@all", "-eval", "-evalsha")])
def test_a_user_who_may_not_write_or_run_scripts_is_refused_with_the_rule_that_helps(rights: tuple[str, ...]) -> None:
    with running_redis() as guarded:
        guarded.client().execute_command("ACL", "SETUSER", "reader", "on", ">pw", *rights)
        with pytest.raises(ServerRefused, match=r"ACL SETUSER <user> ~\* \+@read \+@write \+@scripting"):
            ReplayBuffer.connect(f"unix://reader:pw@{guarded.socket}", "demo", CONFIG)


def test_the_rule_that_the_refusal_names_is_enough() -> None:
    with running_redis() as guarded:
        rule = ("~*", "+@read", "+@write", "+@scripting", "+@transaction", "+@connection", "+info", "+time")
        guarded.client().execute_command("ACL", "SETUSER", "worker", "on", ">pw", *rule)
        buffer = ReplayBuffer.connect(f"unix://worker:pw@{guarded.socket}", "demo", CONFIG)
        branch = buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
        claim = buffer.reserve("w")
        assert isinstance(claim, Claim)
        assert buffer.put(claim, group_for(claim, pack(branch, 0))) == "ready"
        assert isinstance(buffer.lease(branch, 0, 1, 1), Leased)
        buffer.commit(branch, buffer.ledger(branch, 1, [0]))
        buffer.sweep()
        assert not buffer.hints().wait(0.01)
        assert buffer.audit().ok
        buffer.close()


def test_a_server_that_is_not_there_is_lost_after_the_time_for_retries() -> None:
    """B195: host and port are shown, the password is not."""
    start = monotonic()
    with pytest.raises(ServerLost, match=r"127\.0\.0\.1:1/0 did not answer for buffer\.retry_s = 0\.3 s") as lost:
        ReplayBuffer.connect("redis://user:pw@127.0.0.1:1/0", "demo", CONFIG)
    assert monotonic() - start < 5
    assert "pw" not in str(lost.value)


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://host:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ServerRefused, match="Expected redis://, rediss:// or unix://"):
        ReplayBuffer.connect(url, "demo", CONFIG)


def test_a_password_with_special_characters_is_percent_encoded() -> None:
    with running_redis(password="p@ss:w/rd?#%") as guarded:
        ReplayBuffer.connect(guarded.url, "demo", CONFIG).close()


def test_the_clock_is_the_servers(server: RedisServer) -> None:
    buffer = ReplayBuffer.connect(server.url, "its-own-clock", CONFIG)
    buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
    claim = buffer.reserve("w")
    assert isinstance(claim, Claim)
    (deadline,) = buffer._store.books().in_flight.values()
    seconds, micros = server.client().time()
    assert 0 <= seconds * 1000 + micros // 1000 + 60_000 - deadline < 10_000
    buffer.close()


# What else lies in the server


def test_a_foreign_value_under_a_key_of_the_ledger_stops_whoever_comes_and_changes_nothing(
    run: BufferRun, server: RedisServer
) -> None:
    """B193: Redis rolls nothing back, so a key of the wrong type is found before the first write."""
    claim = run.claim()
    before = run.buffer._store.books()
    for name in ("ready", "taken", "hints"):
        key = ledger_key(run.name, name)
        kept = server.client().dump(key)
        server.client().set(key, "hello")
        late = run.attach()
        with pytest.raises(BufferError, match=f"{name} does not hold what asyncrl keeps there"):
            late.reserve("w") if name == "taken" else late.put(claim, group_for(claim, run.version()))
        server.client().delete(key)
        if kept is not None:
            server.client().restore(key, 0, kept)
        assert run.buffer._store.books() == before
    assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"


def test_foreign_bytes_under_a_payload_key_are_corrupt_and_made_again(run: BufferRun, server: RedisServer) -> None:
    """B196."""
    run.make(2)
    one, other = run.lease()
    server.client().set(one.key, b"hello")
    with pytest.raises(CorruptPayload):
        run.buffer.fetch(one)
    run.buffer.give_back(run.branch, [one.ordinal], "corrupt_payload")
    assert run.buffer.fetch(other).ordinal == other.ordinal
    assert run.claim().ordinal == one.ordinal


def test_a_payload_that_was_written_and_never_put_is_swept_when_it_is_old(run: BufferRun, server: RedisServer) -> None:
    client = server.client()
    (claim,) = run.make(1)
    living = run.claim()
    dead = f"payload:{run.name}:9.1:{'0' * 32}"
    of_evaluation = f"payload:{run.name}.eval.1.0:0.1:{'1' * 32}"
    fresh = f"payload:{run.name}:9.1:{'2' * 32}"
    about_to_put = f"payload:{run.name}:{living.gid}:{living.token}"
    ready = f"payload:{run.name}:{claim.gid}:{claim.token}"
    client.set("donor", b"x")
    for key in (dead, of_evaluation, about_to_put):
        client.restore(key, 0, client.dump("donor"), idletime=1000)
    client.restore(ready, 0, client.dump(ready), replace=True, idletime=1000)
    client.set(fresh, b"x")
    for _ in range(client.dbsize() // 50 + 2):
        run.buffer.sweep()
    assert [bool(client.exists(key)) for key in (dead, of_evaluation, fresh, about_to_put, ready)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_closing_an_evaluation_closes_nothing_of_the_run(run: BufferRun) -> None:
    run.buffer.open_evaluation(run.version(), num_prompts=1, group_size=1).close()
    assert run.claim().ordinal == 0


def test_a_closed_buffer_says_so(server: RedisServer) -> None:
    buffer = ReplayBuffer.connect(server.url, "closed", CONFIG)
    buffer.close()
    with pytest.raises(ServerLost, match="closed by its owner"):
        buffer.counts()


def test_a_dropped_evaluation_leaves_no_key(run: BufferRun, server: RedisServer) -> None:
    run.buffer.open_evaluation(run.version(), num_prompts=2, group_size=1)
    worker = run.attach().evaluation()
    assert worker is not None
    claim, late = worker.reserve("w"), worker.reserve("w")
    assert isinstance(claim, Claim)
    assert isinstance(late, Claim)
    worker.put(claim, group_for(claim, run.version()))
    run.buffer.close_evaluation()
    with pytest.raises(BufferError):
        worker.put(late, group_for(late, run.version()))
    with pytest.raises(BufferError):
        worker.renew(late)
    worker.abandon(late)
    worker.sweep()
    assert isinstance(worker.reserve("w"), NotAdmitted)
    assert list(server.client().scan_iter(f"*{run.name}.eval.*")) == []


def test_everything_lies_under_the_runs_tag_or_is_a_payload(run: BufferRun, server: RedisServer) -> None:
    (claim,) = run.make(1)
    tagged = {ledger_key(run.name, name).encode() for name in LEDGER_KEYS}
    mine = {key for key in server.client().scan_iter() if run.name.encode() in key}
    assert mine - tagged == {f"payload:{run.name}:{claim.gid}:{claim.token}".encode()}


# A full server


def test_a_full_server_refuses_the_put_and_is_emptied_by_what_frees_memory() -> None:
    """B192: the message names the limit, and what frees memory still runs."""
    with running_redis(maxmemory="8mb") as small:
        run = BufferRun(small)
        run.set(retry_s=0.2)
        run.recover(limit=9, per_version=2)
        run.make(2)
        trained = run.train()
        claim = run.claim()
        client = small.client()
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        with pytest.raises(ServerFull, match=r"maxmemory above buffer\.max_bytes"):
            run.buffer.put(claim, group_for(claim, run.version()))
        refused = run.buffer.reserve("w")
        assert isinstance(refused, NotAdmitted)
        assert refused.reason == "bytes"
        run.checkpoint(trained)
        run.buffer.renew(claim)
        run.buffer.sweep()
        run.buffer.abandon(claim)
        client.config_set("maxmemory", "8mb")
        assert run.make(1)[0].ordinal == claim.ordinal
        run.audit()
        run.close()


# Many at once


def test_many_workers_and_a_trainer_share_every_group_exactly_once(server: RedisServer) -> None:
    run = BufferRun(server, policy="drop").recover(limit=3, per_version=4)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            buffer = run.attach()
            hints = buffer.hints("room")
            while not buffer.stopped():
                claim = buffer.reserve(name)
                if isinstance(claim, Claim):
                    buffer.put(claim, group_for(claim, pack(run.branch, run.number)))
                else:
                    hints.wait(1)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=work, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    hints, batches = run.buffer.hints("ready"), []
    deadline = monotonic() + 30
    while len(batches) < 10 and not failures and monotonic() < deadline:
        answer = run.try_lease()
        if isinstance(answer, Leased):
            batches.append([run.buffer.fetch(entry).ordinal for entry in answer.entries])
            run.number += 1
            run.advance()
        else:
            hints.wait(1)
    run.buffer.stop()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert [len(batch) for batch in batches] == [4] * 10
    assert len({ordinal for batch in batches for ordinal in batch}) == 40
    run.audit()
    run.close()


def test_two_trainers_that_ask_for_different_steps_get_disjoint_whole_groups(run: BufferRun) -> None:
    run.make(4)
    batches = [run.lease(2, step=1), run.attach().lease(run.branch, 0, 2, 2)]
    assert isinstance(batches[1], Leased)
    first, second = {e.ordinal for e in batches[0]}, {e.ordinal for e in batches[1].entries}
    assert first | second == {0, 1, 2, 3}


def test_hints_wait_inside_the_server_in_slices_and_name_no_change(server: RedisServer) -> None:
    buffer = ReplayBuffer.connect(server.url, "quiet", CONFIG, StalenessConfig())
    start = monotonic()
    assert not buffer.hints().wait(1.2)
    assert 1.2 <= monotonic() - start < 4
    buffer.close()


def test_ids_of_hints_only_grow(run: BufferRun) -> None:
    ids = [run.buffer._store.hint()]
    for _ in range(3):
        run.make(1)
        ids.append(run.buffer._store.hint())
    assert all(a < b for a, b in pairwise([tuple(map(int, one.split("-"))) for one in ids]))


def test_an_index_that_nobody_can_read_is_named_and_its_group_made_again(run: BufferRun) -> None:
    claim, (other,) = run.claim(), run.make(1)
    store, index = run.buffer._store, run.buffer._store.books().cards[other.ordinal].index
    bad = msgpack.packb(["hash", 7, {"a": 1}, None, 5])
    key = f"payload:{run.name}:{claim.gid}:{claim.token}"
    parts = (claim.ordinal, claim.token, key, 10, msgpack.packb([run.branch, 0, 0]), bad, 0, "resubmit", 8)
    assert store._run("put", *parts) == [b"ready"]
    assert any("is damaged" in problem for problem in run.buffer.audit().problems)
    entries = run.lease()
    assert entries[1].xxh3 == index.xxh3
    with pytest.raises(CorruptPayload):
        run.buffer.fetch(entries[0])
    run.buffer.give_back(run.branch, [entries[0].ordinal], "corrupt_payload")
    claim = run.claim()
    with pytest.raises(BufferError):
        store._run("put", claim.ordinal, claim.token, key, 10, b"\xc1", bad, 0, "resubmit", 8)
    assert store.books().cards[claim.ordinal].state == "in_flight"
