"""Groups saved to a file and played into another run: equal trajectories, and every way in which it may not go."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.data.group_files import GroupFile
from buffer import Group, Leased, RunRecord, pack
from tests.support.operated_run import OperatedRun
from tests.support.redis_server import RedisServer, running_redis
from tests.support.rich_groups import rich_group
from weightsync import open_log
from weightsync.log.records import VersionRecord

DEADLINE_PASSED, USAGE = 75, 2


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def runs(server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[list[OperatedRun]]:
    runs = [OperatedRun(server, tmp_path, capsys) for _ in range(2)]
    yield runs
    for run in runs:
        run.buffer.close()


@pytest.fixture
def run(runs: list[OperatedRun]) -> OperatedRun:
    return runs[0].recover()


@pytest.fixture
def other(runs: list[OperatedRun]) -> OperatedRun:
    return runs[1].recover()


def put_rich(run: OperatedRun, count: int) -> list[Group]:
    groups = []
    for _ in range(count):
        claim = run.claim()
        groups.append(rich_group(claim.ordinal, claim.attempt, versions=(pack(run.branch, 0), pack(run.branch, 1))))
        assert run.buffer.put(claim, groups[-1]) == "ready"
    return groups


def groups_in(run: OperatedRun, *states: str) -> list[Group]:
    return [run.buffer.fetch(shown.entry) for shown in run.buffer.groups(*states)]


def trajectories(groups: list[Group]) -> list[object]:
    return [(group.data_source, group.trajectories, dict(group.extra_info)) for group in groups]


def publish(run: OperatedRun, number: int = 0, digest: int = 0xABCD) -> int:
    """A version that the run's trainer published; packed."""
    log = open_log(run.server.url, run.name)
    log.claim(run.branch)
    head = log.head()
    version = pack(run.branch, number)
    log.flip(head and head.version, VersionRecord(version, head and head.version, "nonce", "layout", digest))
    log.close()
    return version


def damage(run: OperatedRun, ordinal: int, value: bytes | None) -> None:
    client = run.server.client()
    (key,) = client.keys(f"payload:{run.name}:{ordinal}.*")
    client.delete(key) if value is None else client.set(key, value)


def test_groups_that_are_exported_and_imported_are_equal(run: OperatedRun, other: OperatedRun, tmp_path: Path) -> None:
    groups = put_rich(run, 3)
    file = tmp_path / "groups.parquet"
    told = run.json("buffer export", subject=file)
    assert (told["num_groups"], told["by_state"], told["unread"], told["moved_on"]) == (3, {"ready": 3}, [], [])
    other.buffer.abandon(other.claim())  # so that ordinals and attempts differ from those of the file
    done = other.json("buffer import", subject=file)
    assert (done["ready"], done["num_groups"], done["next_group"], done["stopped_by"]) == (3, 3, 3, "")
    back = groups_in(other)
    assert trajectories(back) == trajectories(groups)
    assert [group.gid for group in back] == ["0.2", "1.1", "2.1"]
    assert other.buffer.audit(payloads=True).ok
    leased = other.buffer.lease(other.branch, 0, 1, 3)
    assert isinstance(leased, Leased), "the trainer takes them as any others"


def test_states_are_chosen_and_a_leased_or_dead_group_is_exported_with_what_is_known(
    run: OperatedRun, tmp_path: Path
) -> None:
    run.poison(2)
    run.make(3)
    run.buffer.lease(run.branch, 0, 1, 1)
    told = run.json("buffer export", subject=tmp_path / "all.parquet")
    assert told["by_state"] == {"dead": 2, "leased": 1, "ready": 2}
    rows = pq.read_table(tmp_path / "all.parquet", columns=["gid", "state", "reason", "trajectory"]).to_pylist()
    assert {(row["state"], row["reason"]) for row in rows} == {
        ("dead", "trainer_poison"),
        ("leased", ""),
        ("ready", ""),
    }
    some = run.json("buffer export", "--state", "dead,leased", "--first", 2, subject=tmp_path / "some.parquet")
    assert some["by_state"] == {"dead": 2}
    with pytest.raises(SystemExit) as left:
        run.do("buffer export", "--state", "waiting", subject=tmp_path / "none.parquet")
    assert left.value.code == USAGE


def test_missing_and_damaged_payloads_are_listed_and_the_rest_is_written(run: OperatedRun, tmp_path: Path) -> None:
    run.make(4)
    damage(run, 1, None)
    damage(run, 2, b"junk")
    file = tmp_path / "groups.parquet"
    told = run.json("buffer export", subject=file, code=1)
    assert [(one["gid"], one["state"]) for one in told["unread"]] == [("1.1", "ready"), ("2.1", "ready")]
    assert "is gone" in told["unread"][0]["found"]
    assert "ready group 2.1 is left out: the payload of group 2.1 has 4 bytes" in run.err
    assert [stored.ordinal for stored in GroupFile(file).groups()] == [0, 3]


def test_a_file_that_exists_is_kept_unless_it_may_be_overwritten(run: OperatedRun, tmp_path: Path) -> None:
    run.make(1)
    file = tmp_path / "groups.parquet"
    assert run.do("buffer export", subject=file) == 0
    assert "1 groups (ready 1), 2 trajectories, 10 tokens; 0 could not be read" in run.out
    assert run.do("buffer export", subject=file) == USAGE
    assert "exists already" in run.err
    assert run.do("buffer export", "--overwrite", subject=file) == 0


def test_a_full_window_stops_an_import_at_once_or_after_a_named_wait_and_it_goes_on_from_there(
    run: OperatedRun, other: OperatedRun, tmp_path: Path
) -> None:
    groups = put_rich(run, 5)
    file = tmp_path / "groups.parquet"
    run.do("buffer export", subject=file)
    other.recover(limit=1, per_version=1)
    first = other.json("buffer import", "--no-wait", subject=file, code=DEADLINE_PASSED)
    assert (first["ready"], first["next_group"]) == (2, 2)
    assert first["stopped_by"].startswith("window: 2 groups open")
    late = other.json("buffer import", "--skip", 2, "--deadline", 0.1, subject=file, code=DEADLINE_PASSED)
    assert (late["ready"], late["next_group"]) == (0, 2)
    assert "import waits for admission" in other.err
    other.recover(limit=2, per_version=2)
    assert other.json("buffer import", "--skip", 2, subject=file)["ready"] == 3
    assert trajectories(groups_in(other)) == trajectories(groups)


def test_only_the_first_groups_are_imported_on_request(run: OperatedRun, other: OperatedRun, tmp_path: Path) -> None:
    groups = put_rich(run, 3)
    run.do("buffer export", subject=tmp_path / "groups.parquet")
    assert other.do("buffer import", "--skip", 1, "--first", 1, subject=tmp_path / "groups.parquet") == 0
    assert "1 groups: 1 ready; 0 refused" in other.out
    assert trajectories(groups_in(other)) == trajectories(groups[1:2])


def test_groups_of_weights_that_the_run_never_published_are_refused_and_taken_when_restamped(
    run: OperatedRun, other: OperatedRun, tmp_path: Path
) -> None:
    (group,) = put_rich(run, 1)
    file = tmp_path / "groups.parquet"
    run.do("buffer export", subject=file)
    head = publish(other)
    refused = other.json("buffer import", subject=file, code=1)
    assert (refused["ready"], refused["num_groups"]) == (0, 1)
    assert "log of versions knows digest 000000000000abcd" in refused["refused"][0]["found"]
    assert other.buffer.counts()["next_ordinal"] == 0, "no ordinal is spent on a group that would not be trained on"
    assert other.json("buffer import", "--restamp", subject=file)["ready"] == 1
    (back,) = groups_in(other)
    spans = {(span.version, span.digest) for t in back.trajectories for row in t.rows for span in row.spans}
    assert spans == {(head, 0xABCD)}
    assert back.extra_info["restamped"] == {"from": ["1.0", "1.1"], "to": "1.0", "run": run.name}
    assert back.extra_info["index"] == group.extra_info["index"]
    for mine, theirs in zip(back.trajectories, group.trajectories, strict=True):
        assert mine.reward == theirs.reward
        assert [row.logprobs.tobytes() for row in mine.rows] == [row.logprobs.tobytes() for row in theirs.rows]


def test_a_restamped_import_waits_for_weights_that_are_new_enough_and_gives_its_ordinal_back(
    run: OperatedRun, other: OperatedRun, tmp_path: Path
) -> None:
    put_rich(run, 1)
    run.do("buffer export", subject=tmp_path / "groups.parquet")
    other.recover(limit=0)
    words = ("--restamp", "--deadline", 0.1)
    assert other.do("buffer import", *words, subject=tmp_path / "groups.parquet") == DEADLINE_PASSED
    assert "import waits for weights: " in other.err
    assert "no version is published yet" in other.err
    assert other.buffer.counts()["waiting"] == 1
    assert other.json("buffer status")["reasons"] == {"abandoned": 1}


def test_groups_past_the_limit_are_counted_as_stale(run: OperatedRun, other: OperatedRun, tmp_path: Path) -> None:
    run.make(1)
    run.do("buffer export", subject=tmp_path / "groups.parquet")
    other.buffer.advance(other.branch, 5, limit=2, groups_per_version=4)
    assert other.json("buffer import", subject=tmp_path / "groups.parquet", code=1)["stale"] == 1
    assert other.buffer.counts()["waiting"] == 1


def test_a_run_of_another_tokenizer_or_group_size_refuses_the_file(
    run: OperatedRun, other: OperatedRun, tmp_path: Path
) -> None:
    run.make(1)
    run.buffer.register(RunRecord(1, "data", 0, 2, "oldest", tokenizer="a" * 32))
    run.do("buffer export", subject=tmp_path / "groups.parquet")
    other.buffer.register(RunRecord(1, "data", 0, 8, "oldest", tokenizer=""))
    assert other.do("buffer import", subject=tmp_path / "groups.parquet") == USAGE
    assert "group 0 (from 0) has 2 trajectories" in other.err
    assert "rollout.n = 8" in other.err
    other.buffer.register(RunRecord(1, "data", 0, 8, "oldest", tokenizer="b" * 32))
    assert other.do("buffer import", subject=tmp_path / "groups.parquet") == USAGE
    assert "a" * 32 in other.err
    assert "b" * 32 in other.err
    assert other.buffer.counts()["next_ordinal"] == 0


def test_what_is_no_file_of_groups_is_refused_before_an_ordinal_is_spent(run: OperatedRun, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.parquet"
    pq.write_table(pa.table({"prompt": ["sort 31"]}), prompts)
    junk = tmp_path / "junk.parquet"
    junk.write_bytes(b"x" * 100)
    for file, said in ((prompts, "no column 'ordinal'"), (junk, "not parquet"), (tmp_path / "no", "does not exist")):
        assert run.do("buffer import", subject=file) == USAGE
        assert str(file) in run.err
        assert said in run.err
    assert run.buffer.counts()["next_ordinal"] == 0
