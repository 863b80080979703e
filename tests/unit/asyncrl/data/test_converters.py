"""Public data sets as rows: every record is a row or is named, and the same files give the same bytes."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.cli import main
from asyncrl.config import DataConfig
from asyncrl.data import open_dataset
from asyncrl.data.converters import CONVERTERS, ConvertedRow, gsm8k
from asyncrl.data.converters.base import Converter, Unusable, verl_row
from asyncrl.data.converters.records import FoundRecord, records_in
from asyncrl.data.prepare import prepare
from asyncrl.errors import DataError

GSM8K = [
    {"question": "Natalia sold 48 clips and half as many in May. How many?", "answer": "48/2=<<48/2=24>>24\n#### 72"},
    {"question": "How much?", "answer": "It is a lot.\n#### 1,234"},
    {"question": "Below zero?", "answer": "#### -3"},
]
MATH = [
    {"problem": "What is $1+1$?", "level": "Level 1", "type": "Algebra", "solution": "It is $\\boxed{2}$."},
    {"problem": "Half?", "level": "Level 5", "type": "Geometry", "solution": "So \\boxed{\\frac{1}{2}}, done."},
    {"problem": "Seven?", "level": "Level ?", "type": "Algebra", "solution": "\\fbox{3} and then \\boxed 7"},
]


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]


def test_gsm8k_rows_are_as_verl_writes_them(tmp_path: Path) -> None:
    lines(tmp_path / "raw" / "train.jsonl", GSM8K)
    lines(tmp_path / "raw" / "test.jsonl", GSM8K[:1])
    prepared = prepare(CONVERTERS["gsm8k"], tmp_path / "raw", tmp_path / "out", {})
    assert {split: len(rows) for split, (_, rows) in prepared.files.items()} == {"train": 3, "test": 1}
    rows = rows_of(tmp_path / "out" / "train.parquet")
    assert rows[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": f"{GSM8K[0]['question']} {gsm8k.INSTRUCTION}",
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 0, **GSM8K[0]},
    }
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["72", "1234", "-3"]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2]
    dataset = open_dataset([tmp_path / "out" / "train.parquet"], DataConfig(), None)
    assert (len(dataset), dataset[1].ground_truth) == (3, "1234")


@pytest.mark.parametrize("form", ["folders", "lines", "parquet", "list"])
def test_math_is_read_in_each_form_in_which_it_is_published(tmp_path: Path, form: str) -> None:
    raw = tmp_path / "raw"
    if form == "folders":
        for number, record in enumerate(MATH):
            folder = raw / "train" / str(record["type"]).lower()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.json").write_text(json.dumps(record, indent=4))
    elif form == "lines":
        lines(raw / "train.jsonl", MATH)
    elif form == "list":
        raw.mkdir()
        (raw / "train.json").write_text(json.dumps(MATH))
    else:
        raw.mkdir()
        pq.write_table(pa.Table.from_pylist(MATH), raw / "train-00000-of-00001.parquet")
    prepared = prepare(CONVERTERS["math"], raw, tmp_path / "out", {"instruction": ""})
    assert list(prepared.files) == ["train"]
    found = {row["prompt"][0]["content"]: row for row in rows_of(tmp_path / "out" / "train.parquet")}
    truths = {problem: row["reward_model"]["ground_truth"] for problem, row in found.items()}
    assert truths == {"What is $1+1$?": "2", "Half?": "\\frac{1}{2}", "Seven?": "7"}
    assert found["Half?"]["extra_info"]["level"] == "Level 5"
    assert found["Half?"]["data_source"] == "DigitalLearningGmbH/MATH-lighteval"


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    raw = lines(tmp_path / "gsm8k_test.jsonl", GSM8K)
    for out in ("one", "two"):
        prepare(CONVERTERS["gsm8k"], raw, tmp_path / out, {})
    assert (tmp_path / "one" / "test.parquet").read_bytes() == (tmp_path / "two" / "test.parquet").read_bytes()


def test_records_that_make_no_row_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    bad = [GSM8K[0], {"question": "Why?", "answer": "no idea"}, {"question": "x", "answer": "#### many"}, {"q": 1}]
    raw = lines(tmp_path / "train.jsonl", bad)
    raw.write_text(raw.read_text() + "{broken\n")
    with pytest.raises(DataError) as caught:
        prepare(CONVERTERS["gsm8k"], raw, tmp_path / "out", {})
    said = str(caught.value)
    assert "4 records make no row, so nothing was written" in said
    assert "train.jsonl line 2: its answer has no #### before its final number: ...'no idea'" in said
    assert "train.jsonl line 3: its answer has no final number" in said
    assert "train.jsonl line 4: has no 'question' (it has 'q')" in said
    assert "train.jsonl line 5: is not JSON" in said
    assert not (tmp_path / "out").exists()
    prepared = prepare(CONVERTERS["gsm8k"], raw, tmp_path / "out", {}, leave_out=True)
    assert prepared.unusable.counts == {"no_answer": 2, "no_column": 1, "not_json": 1}
    assert len(rows_of(tmp_path / "out" / "train.parquet")) == 1


@pytest.mark.parametrize(
    ("solution", "said"),
    [("2", "no box"), ("\\boxed{", "empty or not closed"), ("\\boxed{ }", "empty or not closed"), ("", "is empty")],
)
def test_a_solution_without_a_whole_box_is_no_truth(tmp_path: Path, solution: str, said: str) -> None:
    raw = lines(tmp_path / "train.jsonl", [{"problem": "p", "solution": solution}])
    with pytest.raises(DataError, match=said):
        prepare(CONVERTERS["math"], raw, tmp_path / "out", {})


def test_a_folder_without_data_and_a_setting_that_is_not_there_are_refused(tmp_path: Path) -> None:
    own = CONVERTERS["gsm8k"]
    with pytest.raises(DataError, match=r"has no data files below it; they end in \.parquet"):
        prepare(own, tmp_path, tmp_path / "out", {})
    with pytest.raises(DataError, match="does not exist"):
        prepare(own, tmp_path / "none", tmp_path / "out", {})
    with pytest.raises(DataError, match="Name the file or folder with --from"):
        prepare(own, None, tmp_path / "out", {})
    with pytest.raises(DataError, match="no setting 'instructions' of this converter; it has: instruction"):
        prepare(own, None, tmp_path / "out", {"instructions": ""})
    (tmp_path / "train.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(DataError, match=r"train\.parquet: .*not a complete parquet file"):
        prepare(own, tmp_path, tmp_path / "out", {})


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("raw/train.jsonl", "train"),
        ("raw/main/test-00000-of-00001.jsonl", "test"),
        ("raw/test/algebra/1.json", "test"),
        ("raw/math_train.jsonl", "train"),
        ("raw/latest.jsonl", "train"),
    ],
)
def test_the_split_is_the_nearest_name_that_says_one(tmp_path: Path, path: str, split: str) -> None:
    lines(tmp_path / path, [{"a": 1}])
    (found,) = records_in(tmp_path / "raw")
    assert isinstance(found, FoundRecord)
    assert found.split == split


def test_a_file_that_reads_otherwise_than_it_was_written_does_not_take_its_name(tmp_path: Path) -> None:
    row = verl_row(data_source="x", prompt=" ", ability="y", ground_truth="1", extra_info={"i": 0})
    empty = Converter("empty prompts", lambda path, settings: iter([ConvertedRow("train", "here", row)]))
    with pytest.raises(DataError, match="does not read as it was written"):
        prepare(empty, None, tmp_path / "out", {})
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_the_command_scores_each_rows_own_solution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = lines(tmp_path / "train.jsonl", GSM8K)
    arguments = ["data", "prepare", "gsm8k", "--from", str(raw), "--out", str(tmp_path / "out"), "--check-rewards"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert f"wrote {tmp_path}/out/train.parquet: 3 rows" in said
    assert "solutions that are not scored 1: 0" in said
    odd = lines(tmp_path / "odd" / "train.jsonl", [{"problem": "p", "solution": "\\boxed{ab}{ \\boxed{}x}"}])
    assert main(["data", "prepare", "math", "--from", str(odd), "--out", str(tmp_path / "out")]) == 2
    assert "empty or not closed" in capsys.readouterr().err
    assert main([*arguments[:-1], "--json", "--set", "instruction=Answer:"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["files"]["train"]["rows"] == 3
    assert main([*arguments, "--set", "instruction"]) == 2


def test_every_converter_says_what_it_is() -> None:
    for name, converter in CONVERTERS.items():
        assert converter.description, name
        assert all(text and setting.isidentifier() for setting, text in converter.settings.items()), name
    assert Unusable("here", "why", "because").reason == "why"
