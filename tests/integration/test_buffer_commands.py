"""What an operator types at a run: status, pause, resume, drain; on a real Redis."""

import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.run import drain as draining
from buffer import Claim, NotAdmitted, ReplayBuffer, ensure
from tests.support.commands import Command
from tests.support.operated_run import BUFFER, OperatedRun
from tests.support.redis_server import RedisServer, running_redis

DEADLINE_PASSED, INTERRUPTED, PREFLIGHT, USAGE = 75, 130, 3, 2


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def run(server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[OperatedRun]:
    run = OperatedRun(server, tmp_path, capsys)
    yield run
    run.buffer.close()


def test_status_says_where_groups_are_and_why_admission_is_closed(run: OperatedRun) -> None:
    run.recover(limit=0, per_version=4)
    run.make(2)
    run.claim("worker-7")
    run.claim("worker-7")
    status = run.json("buffer status")
    assert status["closed"] == ["window"]
    assert (status["counts"]["ready"], status["counts"]["in_flight"]) == (2, 2)
    assert status["workers"] == {"worker-7": 2}
    assert status["version"] == "1.0"
    assert run.do("buffer status") == 0
    assert "closed: window: 4 groups open and 0 taken of a window of 4" in run.out
    assert "ready 2" in run.out
    assert "worker-7 2" in run.out
    assert re.search(r"2\.1 for \d s by worker-7; no token yet; \d+ s left", run.out)


def test_status_changes_nothing_in_the_ledger(run: OperatedRun) -> None:
    run.recover()
    run.make(2)
    before = run.buffer._store.books()
    run.json("buffer status")
    assert run.buffer._store.books() == before


def test_pause_and_resume_may_be_repeated_and_say_what_holds_then(run: OperatedRun) -> None:
    run.recover(limit=0, per_version=1)
    run.claim()
    for _ in range(2):
        assert run.do("buffer pause") == 0
        assert "is paused with 1 groups in flight" in run.out
        assert run.json("buffer status")["closed"] == ["paused", "window"]
    for _ in range(2):
        assert run.do("buffer resume") == 0
        assert "not yet: window: 1 groups open" in run.out


def test_a_drain_of_an_idle_run_pauses_it_and_says_what_is_left(run: OperatedRun) -> None:
    run.recover()
    run.make(3)
    done = run.json("buffer drain")
    assert done == {"drained": True, "paused": True, "in_flight": 0, "ready": 3, "leased": 0, "waiting": 0}
    assert isinstance(answer := run.buffer.reserve("w"), NotAdmitted)
    assert answer.reason == "paused"
    assert run.do("buffer resume") == 0
    run.claim()


def test_a_drain_ends_when_the_last_group_comes_in(run: OperatedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.recover()
    claims = [run.claim("worker-1") for _ in range(2)]
    watching, look = threading.Event(), draining.Drain._attempt

    def attempt(self: draining.Drain) -> dict[str, int] | None:
        counts = look(self)
        watching.set()  # it has looked once, and found groups in flight
        return counts

    monkeypatch.setattr(draining.Drain, "_attempt", attempt)

    def finish() -> None:
        assert watching.wait(20)
        for claim in claims:
            run.buffer.abandon(claim)

    worker = threading.Thread(target=finish)
    worker.start()
    assert run.do("buffer drain", "--deadline", 30) == 0
    worker.join()
    assert "is drained: in_flight 0, ready 0, leased 0, waiting 2" in run.out
    assert "2 in flight, 0 ready" in run.err


def test_a_drain_ends_the_claims_of_workers_that_died(run: OperatedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SWEEP_EVERY_S", 0.0)
    run.recover()
    short = {"claim_s": 0.3, "renew_every_s": 0.05}
    dying = ReplayBuffer.connect(run.server.url, run.name, BUFFER.model_copy(update=short))
    assert isinstance(dying.reserve("worker-that-dies"), Claim)
    dying.close()
    keys = [f"buffer.{name}={value}" for name, value in short.items()]
    assert run.do("buffer drain", "--deadline", 30, *keys) == 0
    assert run.json("buffer status")["reasons"]["worker_lost"] == 1


def test_a_drain_past_its_deadline_says_who_is_waited_for_and_leaves_the_run_paused(run: OperatedRun) -> None:
    run.recover()
    run.claim("slow-worker")
    assert run.do("buffer drain", "--deadline", 0.2) == DEADLINE_PASSED
    assert "drain waits for groups in flight: 0." in run.err
    assert re.search(r"ordinal 0 for \d+ s by slow-worker", run.err)
    assert "stays paused" in run.err
    assert run.json("buffer drain", "--deadline", 0.1, code=DEADLINE_PASSED)["in_flight"] == 1


def test_an_interrupted_drain_leaves_the_run_paused_and_says_so(run: OperatedRun, tmp_path: Path) -> None:
    run.recover()
    run.claim()
    drain = Command(run.words("buffer drain"), tmp_path / "drain.out")
    try:
        drain.until("it waits", lambda: "1 in flight" in drain.text())
        drain.process.send_signal(signal.SIGINT)
        assert drain.wait(30) == INTERRUPTED
        assert "interrupted; the run stays paused" in drain.text()
        assert "Traceback" not in drain.text()
    finally:
        drain.close()
    assert run.json("buffer status")["closed"] == ["paused"]


@pytest.mark.parametrize(
    "action", ["buffer status", "buffer pause", "buffer drain", "buffer dead-letters list", "audit"]
)
def test_a_run_that_nobody_started_is_named_and_not_made(run: OperatedRun, action: str) -> None:
    assert run.do(action) == PREFLIGHT
    assert f"run '{run.name}' is not known" in run.err
    assert run.server.client().keys(f"*{run.name}*") == []


def test_a_run_directory_without_a_server_is_named_and_none_is_started(
    run: OperatedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASYNCRL_REDIS_URL", raising=False)
    assert run.do("buffer status", "buffer.url=null", f"run.dir={tmp_path / 'none'}") == PREFLIGHT
    assert f"{tmp_path / 'none' / 'redis'} holds no server" in run.err
    assert not (tmp_path / "none").exists()


def test_a_run_with_a_server_of_its_own_is_found_while_that_runs_and_when_it_has_stopped(
    run: OperatedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASYNCRL_REDIS_URL", raising=False)
    directory = tmp_path / "own"
    with ensure(directory / "redis") as own:
        buffer = ReplayBuffer.connect(own.url, run.name, BUFFER)
        buffer.recover("nonce", None, number=0, limit=1, groups_per_version=2)
        buffer.close()
        assert run.do("buffer pause", "buffer.url=null", f"run.dir={directory}") == 0
    status = run.json("buffer status", "buffer.url=null", f"run.dir={directory}")
    assert (status["version"], status["closed"]) == ("1.0", ["paused"])


def test_a_server_that_is_not_there_is_named_without_its_password(run: OperatedRun) -> None:
    run.server = RedisServer(run.directory, password="hunter2")
    assert run.do("buffer status", "buffer.retry_s=0.1") == PREFLIGHT
    assert "did not answer" in run.err
    assert "hunter2" not in run.err


def test_an_action_that_does_not_exist_is_answered_with_those_that_do(run: OperatedRun) -> None:
    with pytest.raises(SystemExit) as left:
        run.do("buffer flush")
    assert left.value.code == USAGE
