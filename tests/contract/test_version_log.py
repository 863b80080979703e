"""Every version log: flips fenced and idempotent, anchors, fleet and leases, needs, wishes, hints."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, running_redis
from weightsync.acks import Ack
from weightsync.errors import BaseMismatch, Fenced, LogLost, StaleIncarnation
from weightsync.log import VersionLog, open_log
from weightsync.log.base import Pin
from weightsync.log.directory import DirectoryLog
from weightsync.log.records import Part, Upload, VersionRecord
from weightsync.orders import Adoption, Order
from weightsync.versions import pack

Opener = Callable[[str], VersionLog]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as started:
        yield started


@pytest.fixture(params=["directory", "redis"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens logs of one fresh home; every call is another client of it."""
    server: RedisServer = request.getfixturevalue("server")
    home = str(tmp_path) if request.param == "directory" else server.url
    opened: list[VersionLog] = []

    def open_one(run: str) -> VersionLog:
        opened.append(open_log(home, f"{run}-{tmp_path}"))
        return opened[-1]

    yield open_one
    for log in opened:
        log.close()


@pytest.fixture
def log(opener: Opener) -> VersionLog:
    return opener("run")


def record(version: int, base: int | None, *, nonce: str = "", digest: int = 0, anchor: bool = False) -> VersionRecord:
    nonce = nonce or f"n{version}"
    parts = (Part(0, 0, 100), Part(1, 7, 1 << 40))
    delta = None if base is None else Upload(version, base, nonce, "plan", parts)
    whole = Upload(version, version, f"{nonce}a", "plan", parts[:1]) if anchor else None
    return VersionRecord(version, base, nonce, "layout", digest or version + 5, delta, (3, 4), whole, None, 10, 1000)


ORIGIN = VersionRecord(0, None, "origin", "layout", 1 << 63, model_dir="/models/start", num_words=1000)


def begun(log: VersionLog, branch: int = 1) -> VersionLog:
    log.flip(None, ORIGIN)
    log.claim(branch)
    return log


def test_an_empty_log_has_no_head(log: VersionLog) -> None:
    assert log.head() is None
    assert log.records() == []
    assert log.digest_of(0) is None
    assert log.owner() == 0


def test_what_was_flipped_is_read_back_by_anyone_and_the_last_is_head(opener: Opener) -> None:
    log = begun(opener("run"))
    first, second = pack(1, 0), pack(1, 1)
    log.flip(0, record(first, 0))
    log.flip(first, record(second, first, anchor=True))
    other = opener("run")
    assert other.head() == record(second, first, anchor=True)
    assert other.records() == [ORIGIN, record(first, 0), record(second, first, anchor=True)]
    assert other.record(first) == record(first, 0)
    assert other.record(pack(1, 2)) is None
    assert other.digest_of(0) == 1 << 63


def test_runs_do_not_see_each_other(opener: Opener) -> None:
    begun(opener("one"))
    assert opener("two").head() is None


def test_a_flip_whose_base_is_not_head_is_refused_and_changes_nothing(log: VersionLog) -> None:
    begun(log).flip(0, record(pack(1, 1), 0))
    for base, version in ((0, pack(1, 2)), (None, pack(1, 2)), (pack(1, 1), pack(1, 1)), (pack(1, 1), pack(1, 0))):
        with pytest.raises(BaseMismatch, match=r"head is 1\.1"):
            log.flip(base, record(version, base, nonce="other"))
    head = log.head()
    assert head is not None
    assert head.nonce == f"n{pack(1, 1)}"
    assert len(log.records()) == 2


def test_a_second_origin_is_refused_and_the_first_may_be_repeated(log: VersionLog) -> None:
    begun(log)
    log.flip(None, ORIGIN)
    with pytest.raises(BaseMismatch):
        log.flip(None, VersionRecord(0, None, "other", "layout", 1, model_dir="/elsewhere"))


def test_a_repeated_flip_is_done_also_after_head_and_owner_moved_on(log: VersionLog) -> None:
    begun(log)
    one = record(pack(1, 1), 0)
    log.flip(0, one)
    log.flip(0, one)
    log.claim(2)
    log.flip(one.version, record(pack(2, 1), one.version))
    log.flip(0, one)
    head = log.head()
    assert head is not None
    assert head.version == pack(2, 1)


def test_an_older_branch_is_fenced_from_the_moment_of_the_claim(log: VersionLog) -> None:
    begun(log, branch=1)
    log.claim(3)
    assert log.owner() == 3
    anchor = Upload(0, 0, "a", "plan", ())
    calls: list[Callable[[], None]] = [
        lambda: log.flip(0, record(pack(1, 1), 0)),
        lambda: log.commit_anchor(2, anchor),
        lambda: log.prune(1, [0], []),
        lambda: log.claim(2),
    ]
    for call in calls:
        with pytest.raises(Fenced, match="branch 3 owns the log"):
            call()
    log.claim(3)
    log.flip(0, record(pack(3, 0), 0))


def test_a_claim_that_the_log_lost_with_its_tail_comes_back_with_the_flip(log: VersionLog) -> None:
    begun(log, branch=1)
    log.flip(0, record(pack(4, 2), 0))
    assert log.owner() == 4


def test_a_new_branch_may_go_back_in_numbers(log: VersionLog) -> None:
    begun(log, branch=1)
    log.flip(0, record(pack(1, 9), 0))
    log.claim(2)
    log.flip(pack(1, 9), record(pack(2, 3), pack(1, 9)))
    assert [entry.version for entry in log.records()] == [0, pack(1, 9), pack(2, 3)]


def test_two_publishers_of_one_branch_cannot_both_flip_on_the_same_base(opener: Opener) -> None:
    begun(opener("run"))
    outcomes: list[str] = []

    def flip(name: str) -> None:
        try:
            opener("run").flip(0, record(pack(1, 1), 0, nonce=name))
            outcomes.append(name)
        except BaseMismatch:
            outcomes.append("refused")

    threads = [threading.Thread(target=flip, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes).count("refused") == 3
    head = opener("run").head()
    assert head is not None
    assert head.nonce in outcomes


def test_an_anchor_counts_once_it_is_committed_and_only_beside_a_record(log: VersionLog) -> None:
    begun(log)
    version = pack(1, 1)
    log.flip(0, record(version, 0))
    anchor = Upload(version, version, "whole", "plan", (Part(0, 0, 9),))
    with pytest.raises(BaseMismatch):
        log.commit_anchor(1, Upload(pack(1, 2), pack(1, 2), "x", "plan", ()))
    log.commit_anchor(1, anchor)
    log.commit_anchor(1, anchor)
    head = log.head()
    assert head is not None
    assert head.anchor == anchor
    assert head.whole


def test_pruned_records_are_gone_but_their_digests_and_head_stay(log: VersionLog) -> None:
    begun(log)
    log.flip(0, record(pack(1, 1), 0, anchor=True))
    log.flip(pack(1, 1), record(pack(1, 2), pack(1, 1)))
    log.prune(1, [0, pack(1, 2)], [pack(1, 1)])
    log.prune(1, [0], [])
    assert [entry.version for entry in log.records()] == [pack(1, 1), pack(1, 2)]
    assert log.records()[0].anchor is None
    assert log.digest_of(0) == 1 << 63


def test_a_document_is_written_once(log: VersionLog) -> None:
    assert log.document("layout:../x") is None
    log.put_document("layout:../x", b"one")
    log.put_document("layout:../x", b"two")
    assert log.document("layout:../x") == b"one"


def test_where_the_ranks_have_their_parts_is_what_the_newest_branch_said(opener: Opener) -> None:
    log = begun(opener("run"))
    assert log.endpoints() == {}
    log.put_endpoint(1, 0, "tcp://a:1")
    log.put_endpoint(1, 10, "tcp://[::1]:2")
    log.put_endpoint(1, 0, "tcp://a b:3")
    assert opener("run").endpoints() == {0: "tcp://a b:3", 10: "tcp://[::1]:2"}
    log.claim(2)
    assert set(log.endpoints()) == {0, 10}, "the parts may still be there"
    with pytest.raises(Fenced, match="branch 2 owns the log"):
        log.put_endpoint(1, 0, "tcp://a:1")
    log.put_endpoint(2, 1, "tcp://b:1")
    assert log.endpoints() == {1: "tcp://b:1"}


def test_an_endpoint_of_a_branch_whose_claim_the_log_lost_is_not_taken_back_by_an_older_one(log: VersionLog) -> None:
    begun(log, branch=1)
    log.put_endpoint(3, 0, "tcp://new:1")
    with pytest.raises(Fenced, match="branch 3"):
        log.put_endpoint(2, 0, "tcp://old:1")
    assert log.endpoints() == {0: "tcp://new:1"}


def test_a_server_counts_with_its_version_state_and_url_while_its_lease_lives(log: VersionLog) -> None:
    log.register("s/../1", "start-1", "http://one", 30.0)
    log.register("gone", "start-1", "http://gone", -1.0)
    assert log.acks() == {}
    assert set(log.servers()) == {"s/../1"}
    assert log.servers()["s/../1"].state == "starting"
    log.put_ack("s/../1", "start-1", pack(1, 4), (1 << 64) - 1, "serving")
    log.put_ack("gone", "start-1", pack(1, 4), 1, "serving")
    (ack,) = log.acks().values()
    assert ack == Ack(pack(1, 4), (1 << 64) - 1, "start-1", "serving", "http://one", ack.age_s)
    assert 0 <= ack.age_s < 30
    log.put_state("s/../1", "start-1", "updating")
    log.renew("s/../1", "start-1")
    (ack,) = log.acks().values()
    assert (ack.version, ack.state) == (pack(1, 4), "updating")


def test_a_server_on_the_trainers_devices_is_told_apart_through_all_it_says(log: VersionLog) -> None:
    log.register("own", "start-1", "http://one", 30.0)
    log.register("lent", "start-1", "http://two", 30.0, lent=True)
    log.put_ack("lent", "start-1", 5, 6, "serving")
    log.put_state("lent", "start-1", "asleep")
    log.renew("lent", "start-1")
    assert {name: server.lent for name, server in log.servers().items()} == {"own": False, "lent": True}
    log.register("lent", "start-2", "http://two", 30.0)
    assert not log.servers()["lent"].lent


def test_a_restart_voids_what_the_server_said_before_and_silences_its_old_host(log: VersionLog) -> None:
    log.register("s", "start-1", "http://one", 30.0)
    log.put_ack("s", "start-1", 5, 6, "serving")
    log.register("s", "start-2", "http://two", 30.0)
    assert log.acks() == {}
    stale: list[Callable[[], None]] = [
        lambda: log.put_ack("s", "start-1", 5, 6, "serving"),
        lambda: log.put_state("s", "start-1", "updating"),
        lambda: log.renew("s", "start-1"),
        lambda: log.renew("unknown", "start-1"),
    ]
    for call in stale:
        with pytest.raises(StaleIncarnation):
            call()
    log.leave("s", "start-1")
    assert set(log.servers()) == {"s"}
    log.leave("s", "start-2")
    assert log.servers() == {}


def test_needs_wait_until_they_are_answered(log: VersionLog) -> None:
    log.need("b", "no path", "nonce-1")
    log.need("a", "late")
    log.need("a", "late")
    assert [(need.server, need.reason, need.failed) for need in log.needs()] == [
        ("a", "late", ""),
        ("b", "no path", "nonce-1"),
    ]
    assert all(0 <= need.age_s < 30 for need in log.needs())
    log.answered(["a", "nobody"])
    assert [need.server for need in log.needs()] == ["b"]
    log.answered([])


def test_the_wish_is_to_serve_until_somebody_asks_to_sleep(log: VersionLog) -> None:
    assert log.wish() == "serve"
    log.put_wish("sleep")
    assert log.wish() == "sleep"
    log.put_wish("serve")
    assert log.wish() == "serve"


def test_a_pin_is_read_by_anyone_until_its_branch_takes_it_back_or_loses_the_log(opener: Opener) -> None:
    trainer, host = begun(opener("run"), 3), opener("run")
    assert host.pin() is None
    for pin in (
        Pin("server-1", pack(3, 4)),
        Pin("server of \u65e5", pack(3, (1 << 32) - 1)),
        None,
        Pin("a", pack(3, 7)),
    ):
        trainer.put_pin(3, pin)
        assert host.pin() == pin
    newer = opener("run")
    newer.claim(4)
    assert host.pin() is None, "whoever put it is gone, and its version may be one of a dead branch"
    with pytest.raises(Fenced):
        trainer.put_pin(3, Pin("a", pack(3, 8)))
    newer.put_pin(4, Pin("b", pack(4, 1)))
    assert host.pin() == Pin("b", pack(4, 1))


def test_a_wait_ends_with_a_change_made_since_the_last_one(opener: Opener) -> None:
    log, writer = opener("run"), opener("run")
    watch = log.watch(("head",))
    begun(writer)
    assert watch.wait(5.0)
    assert not watch.wait(0.01)
    writer.put_wish("sleep")
    assert not watch.wait(0.01)
    writer.flip(0, record(pack(1, 1), 0))
    assert watch.wait(5.0)


def test_a_wait_is_woken_while_it_blocks(opener: Opener) -> None:
    log, writer = opener("run"), opener("run")
    begun(writer)
    watch = log.watch(("need",))
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(watch.wait(20.0)))
    thread.start()
    writer.need("s", "no path")
    thread.join(20.0)
    assert woken == [True]


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.register("s", "i", "u", 9.0),
        lambda log: log.put_wish("sleep"),
        lambda log: log.need("s", "r"),
        lambda log: log.claim(1),
        lambda log: log.put_pin(1, None),
        lambda log: log.put_order("s", Order("leave", 1.0, "n")),
        lambda log: log.put_adoption("s", Adoption("u", "m")),
    ],
)
def test_every_change_gives_a_hint_to_a_reader_of_all_topics(
    opener: Opener, change: Callable[[VersionLog], None]
) -> None:
    log = opener("run")
    assert not log.wait(0.001)
    change(opener("run"))
    assert log.wait(5.0)


def test_a_lost_redis_is_one_clear_error_and_the_log_goes_on_when_it_returns(tmp_path: Path) -> None:
    with running_redis(appendonly=True) as server:
        log = open_log(server.url, "run")
        begun(log)
        server.kill()
        server.start()
        assert log.head() == ORIGIN
        log.close()


def test_a_wrong_password_is_refused_in_words_and_never_printed() -> None:
    with running_redis(password="right") as server:
        log = open_log(server.url.replace("right", "wrong-secret"), "run")
        with pytest.raises(LogLost, match="address and password") as caught:
            log.head()
        assert "wrong-secret" not in str(caught.value)


def test_a_crash_between_record_and_head_leaves_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DirectoryLog(tmp_path, "run")
    begun(log)
    write = log._files.write

    def dies_at_head(name: str, blob: bytes) -> None:
        if name == "head":
            raise KeyboardInterrupt
        write(name, blob)

    monkeypatch.setattr(log._files, "write", dies_at_head)
    with pytest.raises(KeyboardInterrupt):
        log.flip(0, record(pack(1, 1), 0, anchor=True))
    again = DirectoryLog(tmp_path, "run")
    assert again.head() == ORIGIN
    assert again.records() == [ORIGIN]
    assert again.digest_of(pack(1, 1)) is None
    again.flip(0, record(pack(1, 1), 0, nonce="second"))
    assert again.head() == record(pack(1, 1), 0, nonce="second")
