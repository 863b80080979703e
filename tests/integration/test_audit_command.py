"""`asyncrl audit` on a real Redis: it proves the accounts, names what does not balance, and says what was wasted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from buffer import Leased
from buffer.keys import ledger_key, member
from tests.support.operated_run import OperatedRun
from tests.support.redis_server import RedisServer, running_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def run(server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[OperatedRun]:
    run = OperatedRun(server, tmp_path, capsys).recover(limit=1, per_version=4)
    yield run
    run.buffer.close()


def train(run: OperatedRun, count: int) -> None:
    """One step, with its checkpoint."""
    leased = run.buffer.lease(run.branch, 0, 1, count)
    assert isinstance(leased, Leased)
    run.buffer.advance(run.branch, 1, limit=1, groups_per_version=4)
    run.buffer.commit(run.branch, run.buffer.ledger(run.branch, 1, [entry.ordinal for entry in leased.entries]))


def test_accounts_that_balance_are_proven_with_what_became_of_every_token(run: OperatedRun) -> None:
    run.make(5)
    train(run, 4)
    run.buffer.abandon(run.claim(), sampled=(6, 2), data_source="arithmetic")
    audit = run.json("audit")
    assert (audit["ok"], audit["problems"], audit["payloads_checked"]) == (True, [], False)
    assert audit["identity"]["consumed"] == 4
    assert (audit["tokens"]["sampled"], audit["tokens"]["held"]) == (38, 6)
    assert audit["tokens"]["fates"]["trained"] == {"arithmetic": {"trajectories": 8, "tokens": 24}}
    assert audit["tokens"]["wasted_by_reason"] == {"failed/abandoned": 0.25}
    assert run.do("audit") == 0
    assert "25.0% of the sampled tokens that have ended were wasted, 25.0% as failed/abandoned" in run.out
    assert "given back unfinished" in run.out
    assert run.out.rstrip().endswith("every sampled token held or ended once.")


def test_a_selection_on_length_is_said_by_source(run: OperatedRun) -> None:
    run.make(4)
    train(run, 4)
    assert "nothing selected on length" in run.json("audit")["length_bias"]["all"]["verdict"]
    run.buffer.abandon(run.claim(), sampled=(40, 40), data_source="arithmetic")
    run.buffer.abandon(run.claim(), sampled=(3, 3), data_source="short")
    bias = run.json("audit")["length_bias"]
    assert "shorter than started ones" in bias["arithmetic"]["verdict"]
    assert "nothing to compare" in bias["short"]["verdict"]
    assert run.do("audit") == 0
    assert "length bias, arithmetic" in run.out


def test_every_anomaly_is_named_and_the_exit_code_says_so(run: OperatedRun) -> None:
    run.make(3)
    client = run.server.client()
    client.zrem(ledger_key(run.name, "ready"), member(1))
    audit = run.json("audit", code=1)
    assert audit["ok"] is False
    assert any("ordinal 1 is ready by its card, but not in that set" in problem for problem in audit["problems"])
    assert run.do("audit") == 1
    assert "The accounts do not balance:" in run.out
    assert f"run '{run.name}': ordinal 1 is ready by its card" in run.out


def test_payloads_are_read_where_that_is_asked_for(run: OperatedRun) -> None:
    run.make(3)
    client = run.server.client()
    (gone,) = client.keys(f"payload:{run.name}:0.*")
    (damaged,) = client.keys(f"payload:{run.name}:2.*")
    client.delete(gone)
    client.set(damaged, b"junk")
    assert run.json("audit")["ok"] is True
    problems = run.json("audit", "--payloads", code=1)["problems"]
    assert any("ordinal 0 is gone" in problem for problem in problems)
    assert any("ordinal 2" in problem for problem in problems)
    assert len(problems) == 2
    assert run.do("audit", "--payloads") == 1
    assert "each was read and checked" in run.out
