"""What an operator types at the servers of a run; on a real Redis, with this process as their hosts."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl.inference.launcher import LOADER
from buffer import pack
from tests.support.operated_run import OperatedRun
from tests.support.redis_server import RedisServer, running_redis
from weightsync.acks import Vitals
from weightsync.log import VersionLog, open_log
from weightsync.log.records import Upload, VersionRecord
from weightsync.orders import Adoption, Order

PREFLIGHT, USAGE, NONE_SERVES = 3, 2, 4
V1, V2 = pack(1, 1), pack(1, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def run(server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[OperatedRun]:
    run = OperatedRun(server, tmp_path, capsys).recover()
    yield run
    run.buffer.close()


@pytest.fixture
def log(run: OperatedRun) -> Iterator[VersionLog]:
    log = open_log(run.server.url, run.name)
    log.flip(None, VersionRecord(0, None, "origin", "layout", 1, model_dir="/model"))
    log.claim(1)
    for base, version in ((0, V1), (V1, V2)):
        delta = Upload(version, base, f"n{version}", "plan", ())
        log.flip(base, VersionRecord(version, base, f"n{version}", "layout", version, delta))
    yield log
    log.close()


def serve(log: VersionLog, name: str, version: int = V2, incarnation: str = "1") -> None:
    log.register(name, incarnation, f"http://{name}:1", 60.0)
    log.put_ack(name, incarnation, version, version, "serving")


def obey(log: VersionLog, name: str, then: Callable[[Order], None]) -> threading.Thread:
    """A host that waits for an order and does `then`."""
    watch = log.watch(("order",))

    def wait() -> None:
        while name not in log.orders():
            assert watch.wait(20.0)
        then(log.orders()[name])

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_the_list_says_of_each_server_where_it_is_and_why(run: OperatedRun, log: VersionLog) -> None:
    serve(log, "one")
    log.renew("one", "1", Vitals(3, 2, 1))
    serve(log, "behind", V1)
    log.put_state("behind", "1", "failed", "digest 12 is not 13")
    log.register("lost", "1", "http://lost:1", -1.0)
    log.put_adoption("added", Adoption("http://added:1", "elsewhere"))
    rows = {row["name"]: row for row in run.json("fleet list")}
    assert list(rows) == ["added", "behind", "lost", "one"]
    assert {name: row["state"] for name, row in rows.items()} == {
        "added": "awaited",
        "behind": "failed",
        "lost": "lost",
        "one": "serving",
    }
    assert rows["one"] | {"since_s": 0.0} == {
        "name": "one",
        "state": "serving",
        "since_s": 0.0,
        "version": "1.2",
        "behind": 0,
        "num_running": 3,
        "num_waiting": 2,
        "num_restarts": 1,
        "url": "http://one:1",
        "lent": False,
        "reason": "",
    }
    assert (rows["behind"]["version"], rows["behind"]["behind"]) == ("1.1", 1)
    assert "no sign of life" in rows["lost"]["reason"]
    assert "elsewhere" in rows["added"]["reason"]
    assert run.do("fleet list") == 0
    assert "1.1 (1 behind)" in run.out
    assert "3 + 2" in run.out
    assert "digest 12 is not 13" in run.out


def test_a_run_in_which_no_server_serves_is_told_by_the_exit_code(run: OperatedRun, log: VersionLog) -> None:
    assert run.json("fleet list", code=NONE_SERVES) == []


def test_a_server_is_drained_when_its_host_says_so_and_had_back(run: OperatedRun, log: VersionLog) -> None:
    serve(log, "one")
    serve(log, "other")
    orders: list[Order] = []

    def leave(order: Order) -> None:
        orders.append(order)
        log.register("one", "2", "", 60.0)
        log.put_state("one", "2", "drained", "asked")

    host = obey(log, "one", leave)
    assert run.do("fleet drain", "--within", "7", subject="one") == 0
    host.join()
    assert (orders[0].kind, orders[0].within_s) == ("leave", 7.0)
    assert "one left after" in run.out
    assert run.do("fleet restore", subject="one") == 0
    assert log.orders() == {}
    assert run.do("fleet restore", subject="one") == PREFLIGHT
    assert "nothing is asked of 'one'" in run.err


def test_a_replaced_server_is_waited_for_until_its_next_life_serves(run: OperatedRun, log: VersionLog) -> None:
    serve(log, "one")
    serve(log, "other")

    def replace(order: Order) -> None:
        log.put_order("one", None, obeyed=order)
        serve(log, "one", V2, incarnation="2")

    host = obey(log, "one", replace)
    assert run.do("fleet replace", subject="one") == 0
    host.join()
    assert "one was replaced and serves 1.2 after" in run.out


def test_orders_that_nobody_could_obey_or_that_stop_everything_are_refused(run: OperatedRun, log: VersionLog) -> None:
    serve(log, "one")
    log.register("lost", "1", "http://lost:1", -1.0)
    for action in ("drain", "remove", "replace"):
        assert run.do(f"fleet {action}", subject="nobody") == PREFLIGHT
        assert "Its servers: lost, one" in run.err
        assert run.do(f"fleet {action}", subject="one") == PREFLIGHT
        assert "only server that serves" in run.err
    assert run.do("fleet drain", subject="lost") == PREFLIGHT
    assert "lost is lost" in run.err
    assert log.orders() == {}
    assert run.do("fleet drain", "--force", "--no-wait", subject="one") == 0
    assert log.orders()["one"].kind == "leave"
    with pytest.raises(SystemExit):
        run.do("fleet drain", "--within", "nan", subject="one")


def test_a_lost_server_is_taken_off_the_list_with_what_was_asked_of_it(run: OperatedRun, log: VersionLog) -> None:
    log.register("lost", "1", "http://lost:1", -1.0)
    log.put_order("lost", Order("leave", 1.0, "n"))
    assert run.do("fleet remove", subject="lost") == 0
    assert log.roster() == {}
    assert log.orders() == {}


def test_a_server_is_added_for_the_host_of_its_machine_and_removed_for_good(run: OperatedRun, log: VersionLog) -> None:
    serve(log, "other")
    stage = f"weightsync.stage_dir={run.directory}/stage"
    assert run.do("fleet add", stage, subject="http://10.0.0.7:3000") == 0
    name = f"{socket.gethostname()}-added-3000"
    assert log.adoptions() == {name: Adoption("http://10.0.0.7:3000", socket.gethostname())}
    assert LOADER in run.out
    assert f"ASYNCRL_STAGE_DIR={run.directory}/stage/{name}" in run.out
    serve(log, name)

    def leave(order: Order) -> None:
        assert order.within_s == 0.0
        log.leave(name, "1")

    host = obey(log, name, leave)
    assert run.do("fleet remove", subject=name) == 0
    host.join()
    assert (log.adoptions(), log.orders()) == ({}, {})
    assert "runs on" in run.out


@pytest.mark.parametrize(
    ("url", "keys", "code", "words"),
    [
        ("10.0.0.7:3000", ["weightsync.stage_dir=/tmp/stage"], USAGE, "is not the address of a server"),
        ("http://10.0.0.7:3000", [], USAGE, "weightsync.stage_dir is not set"),
        ("http://10.0.0.7:3000", ["weightsync.stage_dir=/tmp/stage", "cluster.backend=ray"], USAGE, "cluster.backend"),
    ],
)
def test_what_cannot_be_adopted_is_refused_by_name(
    url: str, keys: list[str], code: int, words: str, run: OperatedRun, log: VersionLog
) -> None:
    assert run.do("fleet add", *keys, subject=url) == code
    assert words in run.err
    assert log.adoptions() == {}


def test_a_name_is_not_taken_from_a_server_that_lives(run: OperatedRun, log: VersionLog) -> None:
    serve(log, "one")
    stage = f"weightsync.stage_dir={run.directory}/stage"
    assert run.do("fleet add", stage, "--name", "one", subject="http://10.0.0.7:3000") == PREFLIGHT
    assert "one is a server at http://one:1" in run.err
    assert run.do("fleet add", stage, "--name", "../one", subject="http://10.0.0.7:3000") == USAGE
    assert "'../one' is no name for a server" in run.err
