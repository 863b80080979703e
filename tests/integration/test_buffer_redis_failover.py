"""Fail-over: Sentinel promotes the replica of a killed primary, or a person does behind the same address."""

from collections.abc import Iterator
from threading import Thread

import pytest

from buffer import BufferConfig, Fenced, ReplayBuffer, ServerLost, ServerRefused
from tests.support.buffer_run import BufferRun
from tests.support.groups import group_for
from tests.support.ports import reserved_ports
from tests.support.redis_cluster import until
from tests.support.redis_failover import Pair, Sentinels, running_pair, running_sentinels
from tests.support.redis_relay import RedisRelay

PASSWORD, SENTINEL_PASSWORD = "p@ss:w/rd?#%", "s?nt&nel=1"
CONFIG = BufferConfig(retry_s=0.3)


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with running_pair(password=PASSWORD) as pair, running_sentinels(pair, password=SENTINEL_PASSWORD) as sentinels:
        yield sentinels


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_pair() as pair:
        yield pair


@pytest.fixture
def address(pair: Pair) -> Iterator[RedisRelay]:
    """A name that leads to the primary, until somebody moves it."""
    with RedisRelay(pair.primary.socket) as relay:
        yield relay


def attached(server: Sentinels | RedisRelay, retry_s: float = 30) -> BufferRun:
    run = BufferRun(server)
    run.set(retry_s=retry_s)
    return run.recover(limit=3, per_version=2)


# Sentinel


def test_a_service_that_no_sentinel_watches_is_refused(sentinels: Sentinels) -> None:
    with pytest.raises(ServerRefused, match=r"none of the Sentinels of .* watches 'another'.*sentinel monitor"):
        ReplayBuffer.connect(sentinels.url.replace("/the-run/", "/another/"), "demo", CONFIG)


def test_a_wrong_password_of_the_sentinels_is_told_from_one_of_the_server_and_neither_is_shown(
    sentinels: Sentinels,
) -> None:
    """B195."""
    address, _, query = sentinels.url.partition("?")
    wrong = (
        (f"{address}?sentinel_password=wr0ng", "Sentinel at 127.0.0.1:.* refused the login.*sentinel_password="),
        (f"redis+sentinel://operator:wr0ng@{address.rpartition('@')[2]}?{query}", "refused the password"),
    )
    for url, message in wrong:
        with pytest.raises(ServerRefused, match=message) as refused:
            ReplayBuffer.connect(url, "demo", CONFIG)
        cause: BaseException | None = refused.value
        while cause is not None:
            assert not [s for s in ("wr0ng", PASSWORD, SENTINEL_PASSWORD, "p%40ss", "s%3Fnt") if s in str(cause)]
            cause = cause.__cause__ or cause.__context__


def test_sentinels_that_do_not_answer_are_named() -> None:
    with reserved_ports(2) as dead:
        url = f"redis+sentinel://127.0.0.1:{dead[0]},127.0.0.1:{dead[1]}/the-run"
        with pytest.raises(ServerLost, match=rf"no Sentinel named the primary of 'the-run'.*{dead[0]}.*{dead[1]}"):
            ReplayBuffer.connect(url, "demo", CONFIG)


def test_a_dead_sentinel_is_passed_over(sentinels: Sentinels) -> None:
    with reserved_ports(1) as (dead,):
        ReplayBuffer.connect(sentinels.url.replace(f":{sentinels.ports[0]},", f":{dead},"), "demo", CONFIG).close()


def test_a_run_goes_on_when_sentinel_promotes_the_replica_of_a_killed_primary(sentinels: Sentinels) -> None:
    pair = sentinels.pair
    run = attached(sentinels)
    claims = run.claims()
    for claim in claims[:2]:
        run.buffer.put(claim, group_for(claim, run.version()))
    hints = run.buffer.hints("ready")
    pair.await_replica()
    pair.primary.kill()
    for claim in claims[2:4]:
        assert run.buffer.put(claim, group_for(claim, run.version())) == "ready"
    assert hints.wait(10), "a stream goes on at the new primary"
    assert sentinels.primary_port() == pair.replica_port
    assert run.train() == [0, 1]
    run.checkpoint([0, 1])
    pair.primary.start()  # back as it was: nobody goes back to it
    assert run.train() == [2, 3]
    assert run.counts("consumed", "leased", "in_flight") == (2, 2, 4)
    run.audit()
    run.close()


# REPLICAOF


def test_calls_wait_for_the_promotion_of_the_replica_that_the_address_leads_to(pair: Pair, address: RedisRelay) -> None:
    patient, hasty = attached(address), BufferRun(address)
    hasty.set(retry_s=0.3)
    claim = patient.claim()
    pair.await_replica()
    pair.primary.kill()
    address.point_to(pair.replica.socket)
    with pytest.raises(ServerLost, match=r"READONLY.*promote it, or point buffer\.url at the primary"):
        hasty.recover()
    with pair.replica.client() as replica:
        replica.config_resetstat()
        answers: list[str] = []
        thread = Thread(target=lambda: answers.append(patient.buffer.put(claim, group_for(claim, patient.version()))))
        thread.start()
        until(lambda: "errorstat_READONLY" in replica.info("errorstats"), "the put to be refused by the replica")
    assert answers == []
    pair.promote()
    thread.join(30)
    assert answers == ["ready"]
    patient.audit()
    for run in (patient, hasty):
        run.close()


def test_a_lost_tail_shows_as_groups_made_again_and_never_as_wrong_data(pair: Pair, address: RedisRelay) -> None:
    """Protocol rules 8 to 11."""
    run = attached(address)
    run.make(4)
    first_branch = run.branch
    pair.leave_behind()
    # The tail: a reserve and its put, a lease, a commit.
    lost = run.claim("in the tail")
    run.buffer.put(lost, group_for(lost, run.version(), rewards=(0.0, 0.0)))
    held = run.claim("in the tail")
    ledger = run.checkpoint(run.train())
    pair.primary.kill()
    address.point_to(pair.replica.socket)
    pair.promote()
    # The lineage has trained 0 and 1: they are ready again, and are not trained again.
    assert run.counts("ready", "in_flight", "consumed") == (4, 0, 0)
    entries = run.lease()
    assert [run.buffer.fetch(entry).ordinal for entry in entries] == [2, 3]
    # What workers hold of the tail is fenced; the ordinal is played again.
    with pytest.raises(Fenced):
        run.buffer.renew(held)
    again = run.claim("after it")
    assert (again.ordinal, again.token == lost.token) == (lost.ordinal, False)
    group = group_for(again, run.version(), rewards=(1.0, 1.0))
    run.buffer.put(again, group)
    run.make(1)
    run.number += 1
    run.advance()
    assert run.buffer.fetch(run.lease()[0]) == group
    run.recover(limit=3, per_version=2, ledger=ledger, number=1)
    assert run.branch == first_branch + 1
    assert run.counts("consumed") == (2,)
    run.audit()
    run.close()
