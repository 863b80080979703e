"""What every version log keeps of servers: states with reasons, vitals, who fell silent, orders and adoptions."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, running_redis
from weightsync import acks
from weightsync.acks import Vitals
from weightsync.errors import StaleIncarnation
from weightsync.log import VersionLog, open_log
from weightsync.orders import Adoption, Order


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as started:
        yield started


@pytest.fixture(params=["directory", "redis"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VersionLog]:
    """One log of a fresh home."""
    server: RedisServer = request.getfixturevalue("server")
    opened = open_log(str(tmp_path) if request.param == "directory" else server.url, f"run-{tmp_path}")
    yield opened
    opened.close()


def test_a_state_has_a_reason_and_a_beginning_that_signs_of_life_do_not_move(log: VersionLog) -> None:
    log.register("s", "1", "http://one", 30.0)
    assert (log.servers()["s"].state, log.servers()["s"].reason) == ("starting", "")
    log.put_state("s", "1", "failed", "digest 12 is not 13")
    first = log.servers()["s"]
    assert (first.state, first.reason) == ("failed", "digest 12 is not 13")
    log.renew("s", "1")
    log.put_state("s", "1", "failed", "still")
    later = log.servers()["s"]
    assert later.reason == "still"
    assert later.since_s >= first.since_s >= 0
    log.put_ack("s", "1", 5, 6, "serving")
    assert (log.servers()["s"].state, log.servers()["s"].reason) == ("serving", "")
    assert log.servers()["s"].since_s <= later.since_s + 1


def test_vitals_stay_until_the_next_ones_and_are_part_of_the_ack(log: VersionLog) -> None:
    log.register("s", "1", "http://one", 30.0)
    log.put_ack("s", "1", 5, 6, "serving")
    assert log.servers()["s"].vitals == Vitals()
    assert log.acks()["s"].num_requests is None
    log.renew("s", "1", Vitals(3, 4, 1))
    log.renew("s", "1")
    log.put_state("s", "1", "updating")
    assert log.servers()["s"].vitals == Vitals(3, 4, 1)
    assert log.acks()["s"].num_requests == 7
    assert log.acks()["s"].version == 5
    log.renew("s", "1", Vitals(num_restarts=2))
    assert log.acks()["s"].num_requests is None
    log.register("s", "2", "http://two", 30.0)
    assert log.servers()["s"].vitals == Vitals(), "a new start is measured anew"
    with pytest.raises(StaleIncarnation):
        log.renew("s", "1", Vitals(1, 1, 1))


def test_who_fell_silent_is_on_the_roster_alone_until_it_is_forgotten(
    log: VersionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.register("lost", "1", "http://lost", -1.0)
    log.register("alive", "1", "http://alive", 30.0)
    assert set(log.servers()) == {"alive"}
    assert set(log.roster()) == {"alive", "lost"}
    assert not log.roster()["lost"].alive
    log.forget("alive")
    log.forget("nobody")
    assert set(log.roster()) == {"alive", "lost"}, "who lives is not forgotten"
    log.forget("lost")
    assert set(log.roster()) == {"alive"}
    log.register("lost", "2", "http://lost", -1.0)
    monkeypatch.setattr(acks, "FORGOTTEN_S", -1.0)
    assert set(log.roster()) == {"alive"}, "an hour of silence is enough"


def test_an_order_is_what_was_asked_last_and_who_obeyed_it_takes_back_no_later_one(log: VersionLog) -> None:
    assert log.orders() == {}
    first, second = Order("replace", 5.0, "first"), Order("leave", 0.0, "second")
    log.put_order("s", first)
    log.put_order("other/../s", first)
    assert log.orders() == {"s": first, "other/../s": first}
    log.put_order("s", second)
    log.put_order("s", None, obeyed=first)
    assert log.orders()["s"] == second
    log.put_order("s", None, obeyed=second)
    assert set(log.orders()) == {"other/../s"}
    log.put_order("other/../s", None)
    log.put_order("other/../s", None)
    assert log.orders() == {}


def test_an_order_outlives_the_start_that_it_was_given_to(log: VersionLog) -> None:
    order = Order("leave", 1.0, "nonce")
    log.register("s", "1", "http://one", 30.0)
    log.put_order("s", order)
    log.leave("s", "1")
    log.register("s", "2", "http://one", 30.0)
    assert log.orders() == {"s": order}


def test_adoptions_are_kept_by_name_until_they_are_taken_back(log: VersionLog) -> None:
    one = Adoption("http://10.0.0.7:30000", "machine-1")
    log.put_adoption("added", one)
    log.put_adoption("added", one)
    assert log.adoptions() == {"added": one}
    log.put_adoption("added", None)
    assert log.adoptions() == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.put_order("s", Order("leave", 1.0, "n")),
        lambda log: log.put_order("s", None),
        lambda log: log.put_adoption("s", Adoption("u", "m")),
    ],
)
def test_what_is_asked_wakes_who_watches_orders_alone(log: VersionLog, change: Callable[[VersionLog], None]) -> None:
    watch = log.watch(("order",))
    log.register("s", "1", "http://one", 30.0)
    assert not watch.wait(0.01)
    change(log)
    assert watch.wait(5.0)
