"""Dead letters as an operator handles them: listed, shown, played again and purged, each once, on a real Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from asyncrl.data.template import PromptTemplate
from buffer import RunRecord
from buffer.keys import parse_payload_key
from tests.support.chat_models import make_model_dir
from tests.support.operated_run import OperatedRun
from tests.support.redis_server import RedisServer, running_redis

LIST, SHOW = "buffer dead-letters list", "buffer dead-letters show"
RESUBMIT, PURGE = "buffer dead-letters resubmit", "buffer dead-letters purge"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def run(server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[OperatedRun]:
    """Ordinals 0 and 1 died as trainer_poison with their payload, 2 and 3 as tool_failed without one."""
    run = OperatedRun(server, tmp_path, capsys)
    run.recover(per_version=2)
    assert run.poison(2) == [0, 1]
    assert run.kill(2) == [2, 3]
    yield run
    run.buffer.close()


def waiting(run: OperatedRun) -> set[int]:
    return set(run.buffer._store.books().waiting)


def test_letters_are_listed_with_reason_error_attempts_and_whether_the_payload_is_kept(run: OperatedRun) -> None:
    letters = run.json(LIST)
    assert [(one["ordinal"], one["reason"], one["payload_bytes"] is None) for one in letters] == [
        (0, "trainer_poison", False),
        (1, "trainer_poison", False),
        (2, "tool_failed", True),
        (3, "tool_failed", True),
    ]
    assert letters[2]["error"] == "the tool answered 503\nthree times"
    assert run.do(LIST) == 0
    assert "the tool answered 503 three times" in run.out
    assert "4 dead letters: trainer_poison 2, tool_failed 2" in run.out
    assert [one["ordinal"] for one in run.json(LIST, "--reason", "tool_failed")] == [2, 3]


def test_a_run_without_letters_says_so(run: OperatedRun) -> None:
    run.buffer.resubmit([0, 1, 2, 3])
    assert run.do(LIST) == 0
    assert run.out == "no dead letters\n"
    for action in (RESUBMIT, PURGE):
        assert run.json(action, "--all")["done"] == []


def test_a_letter_is_shown_with_rewards_versions_and_ids_where_no_tokenizer_is_reachable(run: OperatedRun) -> None:
    shown = run.json(SHOW, "model.path=no/such/model", subject=1)
    assert shown["payload"] == "sound"
    assert "no/such/model" in shown["text"]
    first, second = shown["trajectories"]
    assert (first["reward"], second["reward"], first["finish_reason"]) == (1.0, 0.0, "stop")
    (row,) = first["rows"]
    assert row["versions"] == {"1.0": 3}
    assert (row["token_ids"], row["answer"]) == ([7, 8, 9, 10, 11], None)
    assert run.do(SHOW, "model.path=no/such/model", subject=1) == 0
    assert "sampled 3 of 1.0" in run.out
    assert "7 8 9 10 11" in run.out


def test_a_letter_is_shown_as_text_by_the_tokenizer_of_the_run_and_of_no_other(
    run: OperatedRun, tmp_path: Path
) -> None:
    model = make_model_dir(tmp_path / "model", "starter")
    fingerprint = PromptTemplate.from_model_dir(model).fingerprint
    (row,) = run.json(SHOW, f"model.path={model}", subject=0)["trajectories"][0]["rows"]
    decoded = Tokenizer.from_file(str(model / "tokenizer.json")).decode
    assert (row["prompt"], row["answer"]) == (decoded([7, 8]), decoded([9, 10, 11]))
    assert row["answer"]
    run.buffer.register(RunRecord(1, "data", 0, 2, "oldest", tokenizer="f" * 32))
    shown = run.json(SHOW, f"model.path={model}", subject=0)
    assert shown["trajectories"][0]["rows"][0]["answer"] is None
    assert fingerprint in shown["text"]
    assert "f" * 32 in shown["text"]


def test_a_letter_without_payload_shows_what_is_known(run: OperatedRun) -> None:
    shown = run.json(SHOW, subject=2)
    assert shown["payload"].startswith("none")
    assert shown["reason"] == "tool_failed"
    assert "trajectories" not in shown


def test_a_damaged_payload_is_said_and_gives_exit_code_one(run: OperatedRun) -> None:
    client = run.server.client()
    (key,) = [k for k in client.keys(f"payload:{run.name}:*") if parse_payload_key(k.decode())[1] == 0]
    client.set(key, b"junk")
    assert run.do(SHOW, subject=0) == 1
    assert "its index says" in run.out
    assert "trainer_poison" in run.out


def test_an_ordinal_that_is_no_letter_is_named(run: OperatedRun) -> None:
    assert run.do(SHOW, subject=99) == 1
    assert "ordinal 99 is not a dead letter" in run.err


def test_resubmitted_letters_wait_again_once_and_unknown_ones_are_named(run: OperatedRun) -> None:
    done = run.json(RESUBMIT, "--ordinals", "2,0.3,99", code=1)
    assert (done["done"], done["unknown"]) == ([0, 2], [99])
    assert waiting(run) == {0, 2}
    again = run.json(RESUBMIT, "--ordinals", "0,2", code=1)
    assert (again["done"], again["unknown"]) == ([], [0, 2])
    assert "not dead letters: 0, 2" in run.err
    assert run.json("buffer status")["reasons"]["resubmitted"] == 2
    assert run.buffer.audit(payloads=True).ok


def test_letters_are_resubmitted_by_reason(run: OperatedRun) -> None:
    assert run.do(RESUBMIT, "--reason", "tool_failed") == 0
    assert run.out == "2 wait to be played again: 2, 3\n"
    assert waiting(run) == {2, 3}
    assert run.do(RESUBMIT, "--reason", "tool_failed") == 1
    assert "no dead letter has the reason 'tool_failed': trainer_poison 2" in run.err


def test_purged_letters_lose_their_payload_once_and_keep_their_reasons(run: OperatedRun) -> None:
    assert run.json(PURGE, "--all")["done"] == [0, 1]
    assert run.server.client().keys(f"payload:{run.name}:*") == []
    assert [one["reason"] for one in run.json(LIST)] == ["trainer_poison"] * 2 + ["tool_failed"] * 2
    again = run.json(PURGE, "--ordinals", "0,1")
    assert (again["done"], again["unchanged"], again["unknown"]) == ([], [0, 1], [])
    assert run.json("buffer status")["dead_bytes"] == 0
    assert run.buffer.audit(payloads=True).ok


@pytest.mark.parametrize("words", [(), ("--all", "--reason", "x"), ("--ordinals", "3,x")])
def test_what_is_chosen_is_said_once_and_in_numbers(run: OperatedRun, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as left:
        run.do(PURGE, *words)
    assert left.value.code == 2
    assert len(run.buffer.dead_letters()) == 4
