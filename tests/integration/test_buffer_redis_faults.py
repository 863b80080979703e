"""The buffer on a server that dies, freezes, restarts, forgets or answers into the void."""

import secrets
from collections.abc import Iterator
from threading import Event, Thread
from time import monotonic

import pytest

from buffer import Behind, Claim, Fenced, Leased, ReplayBuffer, ServerLost, pack
from buffer.keys import LEDGER_KEYS, ledger_key
from buffer.scripts import script
from tests.support.buffer_run import CONFIG, BufferRun
from tests.support.groups import group_for
from tests.support.redis_relay import RedisRelay
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


# Lost replies


def test_every_transition_survives_the_loss_of_its_reply(server: RedisServer) -> None:
    with RedisRelay(server.socket) as proxy:
        run = f"lossy-{secrets.token_hex(4)}"
        buffer = ReplayBuffer.connect(proxy.url, run, CONFIG)

        def lossy(name: str) -> None:
            proxy.lose_reply(script(name).sha)

        lossy("recover")
        branch = buffer.recover("n", None, number=0, limit=3, groups_per_version=2)
        assert branch == 1
        claims = []
        for _ in range(6):
            lossy("reserve")
            claims.append(buffer.reserve("w"))
        assert [claim.ordinal for claim in claims if isinstance(claim, Claim)] == [0, 1, 2, 3, 4, 5]
        for claim in claims[:4]:
            assert isinstance(claim, Claim)
            lossy("renew")
            assert buffer.renew(claim).go_on
            proxy.lose_reply(f"payload:{run}:{claim.gid}")
            lossy("put")
            assert buffer.put(claim, group_for(claim, pack(branch, 0))) == "ready"
        lossy("release")
        assert buffer.fail(claims[4], "reward_failed") == "waiting"
        lossy("lease")
        leased = buffer.lease(branch, 0, 1, 2)
        assert isinstance(leased, Leased)
        assert [entry.ordinal for entry in leased.entries] == [0, 1]
        proxy.lose_reply("GET")
        assert buffer.fetch(leased.entries[0]).ordinal == 0
        lossy("advance")
        buffer.advance(branch, 1, limit=3, groups_per_version=2)
        lossy("lease")
        second = buffer.lease(branch, 1, 2, 2)
        assert isinstance(second, Leased)
        lossy("give_back")
        buffer.give_back(branch, [second.entries[0].ordinal], "zero_variance")
        lossy("audit")
        ledger = buffer.ledger(branch, 1, [0, 1])
        lossy("commit")
        buffer.commit(branch, ledger)
        lossy("sweep")
        buffer.sweep()
        audit = buffer.audit(payloads=True)
        assert audit.ok, audit.problems
        assert {k: v for k, v in audit.identity.items() if v} == {
            "in_flight": 1,
            "waiting": 1,
            "leased": 1,
            "consumed": 2,
            "filtered": 1,
            "next_ordinal": 6,
        }
        assert audit.by_reason["zero_variance"] == 1
        assert audit.by_reason["reward_failed"] == 1
        assert proxy.num_lost >= 20
        buffer.close()


def test_a_put_that_turned_out_stale_is_fenced_when_it_is_repeated_and_its_payload_is_gone(
    server: RedisServer,
) -> None:
    with RedisRelay(server.socket) as proxy:
        run = f"lossy-{secrets.token_hex(4)}"
        buffer = ReplayBuffer.connect(proxy.url, run, CONFIG)
        branch = buffer.recover("n", None, number=5, limit=0, groups_per_version=1)
        claim = buffer.reserve("w")
        assert isinstance(claim, Claim)
        proxy.lose_reply(script("put").sha)
        with pytest.raises(Fenced):
            buffer.put(claim, group_for(claim, pack(branch, 3)))
        assert buffer.counts()["waiting"] == 1
        assert [key for key in server.client().scan_iter() if key.startswith(f"payload:{run}:".encode())] == []
        buffer.close()


# Restarts and freezes


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


def test_a_server_that_freezes_is_lost_in_bounded_time(server: RedisServer) -> None:
    run = BufferRun(server)
    run.set(retry_s=0.2)
    hints = run.buffer.hints()
    server.freeze()
    start = monotonic()
    try:
        with pytest.raises(ServerLost, match="did not answer"):
            hints.wait(1.0)
    finally:
        server.thaw()
    assert monotonic() - start < 8
    run.recover()
    run.close()


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
