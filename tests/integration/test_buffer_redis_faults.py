"""The buffer on a server that dies, restarts, forgets, is full or cannot write."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from buffer import Behind, Fenced, Leased, ServerLost
from buffer.keys import LEDGER_KEYS, ledger_key
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for
from tests.support.redis_cluster import until
from tests.support.redis_server import RedisServer, running_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(appendonly=True) as server:
        yield server


@pytest.fixture
def run(server: RedisServer) -> Iterator[BufferRun]:
    run = BufferRun(server).recover(limit=1, per_version=2)
    yield run
    run.close()


def save(server: RedisServer, run: BufferRun) -> dict[str, bytes]:
    """The ledger of a run, as it is durable now."""
    keys = [ledger_key(run.name, name) for name in LEDGER_KEYS]
    return {key: dump for key in keys if (dump := server.client().dump(key)) is not None}


def lose_tail(server: RedisServer, run: BufferRun, saved: dict[str, bytes]) -> None:
    """What a fail-over to a replica that was behind does; payloads may be there or not."""
    client = server.client()
    client.delete(*(ledger_key(run.name, name) for name in LEDGER_KEYS))
    for key, dump in saved.items():
        client.restore(key, 0, dump)


# Restarts


def test_a_call_during_a_restart_ends_as_if_nothing_had_happened(run: BufferRun, server: RedisServer) -> None:
    claim = run.claim()
    server.kill()
    restart = Thread(target=server.start)
    restart.start()
    assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"
    restart.join()
    assert run.counts("ready") == (1,)
    run.audit()


def test_after_a_restart_the_first_sweep_spares_the_claims_that_it_outlived(
    run: BufferRun, server: RedisServer
) -> None:
    claim = run.claim()
    run.buffer.sweep()
    server.kill()
    server.start()
    run.passes(3600)
    swept = run.buffer.sweep()
    assert swept.guarded
    assert swept.expired == ()
    run.passes(59)
    assert run.buffer.sweep().expired == ()
    assert run.buffer.renew(claim).go_on
    run.passes(61)
    assert run.buffer.sweep().expired == (0,)


def test_what_was_acknowledged_outlives_the_server(run: BufferRun, server: RedisServer) -> None:
    run.make(3)
    trained = run.train()
    run.checkpoint(trained)
    before = run.buffer._store.books()
    server.kill()
    server.start()
    assert run.buffer._store.books() == before
    run.audit()


def test_closing_ends_a_retry_in_another_thread_at_once() -> None:
    with running_redis() as dying:
        run = BufferRun(dying)
        run.set(retry_s=60)
        run.recover()
        dying.kill()
        ended, begun = Event(), Event()

        def ask() -> None:
            begun.set()
            with pytest.raises(ServerLost):
                run.buffer.counts()
            ended.set()

        thread = Thread(target=ask)
        thread.start()
        assert begun.wait(5)
        run.close()
        assert ended.wait(5)
        thread.join()


def test_a_server_that_forgot_its_scripts_is_given_them_again(run: BufferRun, server: RedisServer) -> None:
    run.make(1)
    server.client().script_flush()
    assert run.counts("ready") == (1,)


def test_wherever_the_append_only_file_is_cut_the_books_are_in_order() -> None:
    """What a power failure leaves of `appendfsync everysec`: some prefix. A transition is in it whole or not at all."""
    with running_redis(appendonly=True, appendfsync="everysec") as server:
        run = BufferRun(server).recover(limit=5, per_version=2)
        for _ in range(2):
            run.make(3)
            run.buffer.fail(run.claim(), "reward_failed")
            run.checkpoint(run.train())
        server.kill()
        (journal,) = (server.directory / "appendonlydir").glob("*.incr.aof")
        whole = journal.read_bytes()
        seen = set()
        for part in range(1, 9):
            journal.write_bytes(whole[: len(whole) * part // 8])
            server.start()
            audit = run.attach().audit()
            assert audit.ok, (part, audit.problems)
            seen.add(tuple(audit.identity.items()))
            server.kill()
        assert len(seen) > 4, "the cuts lie in different places"
        run.close()


# Full, or unable to write


def test_a_put_waits_for_room_and_loses_nothing() -> None:
    """B192: the producer backs off; what frees memory ends its wait."""
    with running_redis(maxmemory="16mb") as small:
        run = BufferRun(small)
        run.set(retry_s=30)
        run.recover(limit=9, per_version=2)
        claim = run.claim()
        client = small.client()
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
        answers: list[str] = []
        thread = Thread(target=lambda: answers.append(run.buffer.put(claim, group_for(claim, run.version()))))
        thread.start()
        until(lambda: "errorstat_OOM" in client.info("errorstats"), "the put to be refused")
        assert answers == []
        client.config_set("maxmemory", "16mb")
        thread.join(20)
        assert answers == ["ready"]
        run.audit()
        run.close()


def test_a_server_that_cannot_write_its_disk_takes_no_put_until_it_can(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with running_redis(options=("--dir", str(disk), "--save", "3600 1000000")) as server:
        patient, hasty = BufferRun(server).recover(limit=1, per_version=2), BufferRun(server)
        hasty.set(retry_s=0.2)
        claim = patient.claim()
        client = server.client()
        shutil.rmtree(disk)
        client.bgsave()
        until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "the snapshot to fail")
        with pytest.raises(ServerLost, match=r"took no work .*MISCONF.*free space there, and see its log"):
            hasty.recover()
        answers: list[str] = []
        thread = Thread(target=lambda: answers.append(patient.buffer.put(claim, group_for(claim, patient.version()))))
        refused = client.info("errorstats")["errorstat_MISCONF"]
        thread.start()
        until(lambda: client.info("errorstats")["errorstat_MISCONF"] != refused, "the put to be refused")
        assert answers == []
        client.config_set("stop-writes-on-bgsave-error", "no")
        thread.join(20)
        assert answers == ["ready"]
        patient.audit()
        for run in (patient, hasty):
            run.close()
        server.kill()  # a SIGTERM would make it save first


def test_a_strangers_key_that_is_no_text_stops_no_sweep(run: BufferRun, server: RedisServer) -> None:
    client = server.client()
    client.set(f"payload:{run.name}".encode() + b"\xff:1.1:00", b"x")
    for _ in range(client.dbsize() // 50 + 2):
        run.buffer.sweep()
    assert client.exists(f"payload:{run.name}".encode() + b"\xff:1.1:00"), "not ours to delete"


# A lost tail


def test_a_trainer_whose_branch_was_lost_resumes_and_trains_nothing_twice(run: BufferRun, server: RedisServer) -> None:
    run.make(4)
    ledger = run.checkpoint(run.train())
    saved = save(server, run)
    run.recover(limit=1, per_version=2, ledger=ledger, number=1)
    lost = run.branch
    assert run.train() == [2, 3]
    lose_tail(server, run, saved)
    with pytest.raises(Behind):
        run.try_lease()
    run.buffer._branch = lost
    branch = run.buffer.recover("again", ledger, number=1, limit=1, groups_per_version=2)
    assert branch == lost + 1, "what this trainer has seen is never opened again"
    run.branch, run.number = branch, 1
    assert run.train() == [2, 3]


def test_after_a_lost_lease_and_commit_the_lineage_is_trained_once(run: BufferRun, server: RedisServer) -> None:
    run.make(4)
    saved = save(server, run)
    trained = run.train()
    run.checkpoint(trained)
    lose_tail(server, run, saved)
    # Redis believes that 0 and 1 are ready, and their payloads are gone. The trainer knows better.
    assert run.counts("ready", "consumed") == (4, 0)
    answer = run.try_lease()
    assert isinstance(answer, Leased)
    assert [entry.ordinal for entry in answer.entries] == [2, 3]
    run.number += 1
    ledger = run.checkpoint([2, 3])
    assert ledger.watermark == 4
    assert run.counts("ready", "leased", "consumed") == (0, 0, 4)
    run.audit()


def test_after_a_lost_reserve_two_workers_hold_one_group_and_one_of_them_is_trained(
    run: BufferRun, server: RedisServer
) -> None:
    saved = save(server, run)
    first = run.claim("first")
    lose_tail(server, run, saved)
    second = run.claim("second")
    assert (first.gid, first.token == second.token) == (second.gid, False)
    assert run.buffer.put(second, group_for(second, run.version(), rewards=(1.0, 1.0))) == "ready"
    with pytest.raises(Fenced):
        run.buffer.put(first, group_for(first, run.version(), rewards=(0.0, 0.0)))
    run.make(1)
    assert run.buffer.fetch(run.lease()[0]) == group_for(second, run.version(), rewards=(1.0, 1.0))
    run.audit()


def test_everything_lost_is_played_again_from_the_checkpoint(run: BufferRun, server: RedisServer) -> None:
    run.make(4)
    ledger = run.checkpoint(run.train())
    server.client().flushall()
    run.recover(limit=1, per_version=2, ledger=ledger, number=1)
    assert [claim.ordinal for claim in run.claims()] == [2, 3, 4, 5]
    assert run.counts("consumed") == (2,)
    run.audit()
