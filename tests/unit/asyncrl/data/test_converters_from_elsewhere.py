"""Converters that read no public file: Harbor's directories, and entries of reasoning-gym with the reward they get.

The library itself is used where it is installed; a stand-in shows what happens when it is not as it was.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from asyncrl.data.converters import CONVERTERS, ConvertedRow, Unusable
from asyncrl.data.harbor_tasks import BASH_SCHEMA, TASK_KEY
from asyncrl.data.rows import PromptRow, row_from_record
from asyncrl.data.values import Json
from asyncrl.envs.rewards import reasoning_gym
from asyncrl.envs.rewards.compute_score import compute_score
from asyncrl.errors import DataError, RewardError
from tests.support.harbor_tasks import write_task


def rows_of(name: str, source: Path | None, **settings: str) -> list[ConvertedRow]:
    found = list(CONVERTERS[name].convert(source, settings))
    assert all(isinstance(row, ConvertedRow) for row in found)
    return [row for row in found if isinstance(row, ConvertedRow)]


def read(row: ConvertedRow) -> PromptRow:
    return row_from_record(row.values, index=0, prompt_key="prompt")[0]


def test_a_harbor_task_becomes_a_row_that_finds_it(tmp_path: Path) -> None:
    directory = write_task(tmp_path / "set")
    (row,) = rows_of("harbor", tmp_path, split="test", instruction="Go.")
    prompt = read(row)
    assert (row.split, prompt.data_source, prompt.ground_truth) == ("test", "harbor", None)
    assert prompt.messages[0]["content"] == "Write 42 to the file answer.txt.\n\nGo."
    assert prompt.extra_info[TASK_KEY] == str(directory)
    (tool,) = prompt.tools
    assert tool == BASH_SCHEMA


def test_a_harbor_task_that_cannot_be_played_is_named_and_the_others_are_rows(tmp_path: Path) -> None:
    write_task(tmp_path, "a")
    write_task(tmp_path, "b", environment="gpus = 1")
    one, other = CONVERTERS["harbor"].convert(tmp_path, {})
    assert isinstance(one, ConvertedRow)
    assert isinstance(other, Unusable)
    assert "environment.gpus asks for GPUs" in other.text
    with pytest.raises(DataError, match="--from is missing"):
        list(CONVERTERS["harbor"].convert(None, {}))


class Sums:
    """A data set as reasoning-gym has them, as far as it is used here."""

    def __init__(self, size: int, seed: int, step: int = 1) -> None:
        self.size, self.seed, self.step = size, seed, step

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, object]:
        number = self.seed + self.step * index
        answer = "" if number == 13 else str(number + 1)
        return {"question": f"{number}+1?", "answer": answer, "metadata": {"number": (number,)}}

    def score_answer(self, answer: str | None, entry: dict[str, object]) -> float:
        assert isinstance(entry["metadata"], dict)
        (number,) = entry["metadata"]["number"]  # a tuple, which no file would have kept
        return 1.0 if answer == str(number + 1) else 0.05


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def create_dataset(name: str, **config: int) -> Sums:
        if name != "sums":
            raise ValueError(f"Dataset '{name}' not registered")
        return Sums(**config)

    reasoning_gym._dataset.cache_clear()
    reasoning_gym._entry.cache_clear()
    module = ModuleType("reasoning_gym")
    vars(module).update(create_dataset=create_dataset, __version__="9.9")
    monkeypatch.setitem(sys.modules, "reasoning_gym", module)
    return module


def score(row: ConvertedRow, answer: str) -> float | None:
    prompt = read(row)
    return compute_score(prompt.data_source, answer, prompt.ground_truth, prompt.extra_info).value


def test_an_entry_is_made_again_and_scores_the_answer_itself(library: ModuleType) -> None:
    rows = rows_of("reasoning-gym", None, dataset="sums", size="3", seed="40", config='{"step": 2}')
    assert [read(row).messages[0]["content"] for row in rows][2] == (
        "44+1?\n\nPut the final answer, and nothing else, between <answer> and </answer>."
    )
    assert score(rows[2], "I think <answer>7</answer>, no, <answer> 45 </answer>.") == 1.0
    assert score(rows[2], "45") == 1.0, "without tags it is the whole answer"
    assert score(rows[2], "it is 45") == 0.05
    assert score(rows[2], "") == 0.05
    assert all(score(row, str(row.solution)) == 1.0 for row in rows)


def test_an_entry_without_an_answer_is_named(library: ModuleType) -> None:
    made = list(CONVERTERS["reasoning-gym"].convert(None, {"dataset": "sums", "size": "3", "seed": "12"}))
    assert [type(row) for row in made] == [ConvertedRow, Unusable, ConvertedRow]


def test_a_library_that_makes_another_entry_is_an_error_and_no_zero(library: ModuleType) -> None:
    (row,) = rows_of("reasoning-gym", None, dataset="sums", size="1", seed="5")
    vars(library)["create_dataset"] = lambda name, **config: Sums(size=1, seed=6)
    with pytest.raises(RewardError, match=r"entry 0 of sums is not the one of the row.*9\.9.*prepare it again"):
        score(row, "6")


@pytest.mark.parametrize(
    "place",
    [None, {"dataset": "sums"}, {"dataset": "sums", "config": {"size": 1}, "index": 0}, {"config": "{}", "index": 0}],
)
def test_a_row_that_says_no_entry_is_an_error(library: ModuleType, place: Json) -> None:
    extra = {} if place is None else {"reasoning_gym": place}
    with pytest.raises(RewardError, match=r"extra_info.reasoning_gym (is null|needs dataset)"):
        compute_score("reasoning_gym", "6", "6", extra)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "--set dataset=NAME is missing"),
        ({"dataset": "none"}, "cannot make the data set 'none'.*not registered"),
        ({"dataset": "sums", "config": '{"depth": 3}'}, "cannot make the data set 'sums'.*depth"),
        ({"dataset": "sums", "config": "[]"}, "must be a JSON object"),
        ({"dataset": "sums", "size": "many"}, "whole numbers.*many"),
    ],
)
def test_what_makes_no_data_set_is_refused(library: ModuleType, settings: dict[str, str], says: str) -> None:
    with pytest.raises(DataError, match=says):
        list(CONVERTERS["reasoning-gym"].convert(None, settings))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"install asyncrl\[reasoning-gym\]"):
        list(CONVERTERS["reasoning-gym"].convert(None, {"dataset": "sums"}))
    reasoning_gym._dataset.cache_clear()
    place: Json = {"dataset": "sums", "config": "{}", "index": 0}
    with pytest.raises(RewardError, match=r"install asyncrl\[reasoning-gym\]"):
        compute_score("reasoning_gym", "1", "1", {"reasoning_gym": place})


@pytest.mark.parametrize("name", ["chain_sum", "word_ladder", "countdown", "sudoku", "number_sorting", "n_queens"])
def test_the_library_scores_its_own_answers_right(name: str) -> None:
    pytest.importorskip("reasoning_gym", reason="the extra asyncrl[reasoning-gym] is not installed")
    rows = rows_of("reasoning-gym", None, dataset=name, size="3", seed="1")
    again = rows_of("reasoning-gym", None, dataset=name, size="3", seed="1")
    assert json.dumps([row.values for row in rows]) == json.dumps([row.values for row in again])
    assert [score(row, str(row.solution)) for row in rows] == [1.0] * 3
    assert all((value := score(row, "<answer>nonsense</answer>")) is not None and value < 0.5 for row in rows)


class Evaluated(Sums):
    """A data set that evaluates answers, as some of the library's do with sympy."""

    def score_answer(self, answer: str | None, entry: dict[str, object]) -> float:
        assert isinstance(entry["metadata"], dict)
        (number,) = entry["metadata"]["number"]
        return 1.0 if answer and eval(answer) == number + 1 else 0.0


def test_a_data_set_that_evaluates_answers_gets_arithmetic_only(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """B219: eval, and sympy's parse_expr, run what they are given."""
    monkeypatch.setattr(library, "create_dataset", lambda name, **config: Evaluated(**config))
    place = {"dataset": "evaluated", "config": json.dumps({"size": 3, "seed": 5}), "index": 1}
    marker = tmp_path / "marker"

    def score(answer: str) -> float | None:
        return compute_score("reasoning_gym", f"<answer>{answer}</answer>", "7", {reasoning_gym.ROW_KEY: place}).value

    assert score("(3 + 4) * 1.0") == 1.0
    assert score("8") == 0.0
    assert all(map(reasoning_gym.is_arithmetic, ("x**3/3 + C", "exp(2*x)*sin(x) - 1.5e-3", "2.5*(x + y)", "a = 3")))
    for code in (
        f"open({str(marker)!r}, 'w')",
        f"__import__('pathlib').Path({str(marker)!r}).touch() or 7",
        "().__class__.__base__",
        "exit()",
        "(7).real",
        "x.real",
        "7 if 1 else exit ()",
    ):
        assert score(code) == 0.0
    assert not marker.exists()


@pytest.mark.parametrize(
    "answer", ["['3', '7']", '{"a": [1, true, null]}', "_ Q _\nQ _ _", "-2.5e3", "(1, 'x')", "x + 1"]
)
def test_data_may_be_evaluated_but_not_by_what_reads_texts_in_it(answer: str) -> None:
    """Lists, boards and JSON are answers of many data sets; sympy's parsers read the texts in a list again."""
    assert reasoning_gym.is_arithmetic_or_data(answer)
    assert not reasoning_gym.is_arithmetic('7 # "')
    assert reasoning_gym.is_arithmetic(answer) == (answer in ("-2.5e3", "x + 1"))
    for code in (
        "[exit()]",
        "['7', open('f')]",
        "{x: exec('1') for x in 'a'}",
        "lambda: 0",
        "Q _ (",
        "'7' .x",
    ):
        assert not reasoning_gym.is_arithmetic_or_data(code)
