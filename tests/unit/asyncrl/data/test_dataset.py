"""Several files as one data set: numbering, fingerprint, lengths, what is refused."""

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config import DataConfig
from asyncrl.data.dataset import open_dataset
from asyncrl.data.filters import truncate
from asyncrl.data.values import Json
from asyncrl.errors import DataError
from tests.support.word_template import WordTemplate


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(first: int, last: int) -> list[dict[str, object]]:
    return [{"prompt": f"question {i}", "ground_truth": i} for i in range(first, last)]


def test_files_are_numbered_through_and_read_row_by_row(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", [*numbered(0, 2), {"prompt": "", "ground_truth": 9}])
    two = tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist(numbered(3, 10)), two, row_group_size=3)
    three = write(tmp_path / "c.jsonl", numbered(10, 12))
    dataset = open_dataset([one, two, three], DataConfig(), None)
    assert [row.index for row in dataset] == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert all(row.ground_truth == row.index for row in dataset)
    assert dataset[len(dataset) - 1].index == 11
    assert dataset.report.refused == {"empty_prompt": 1}


def test_a_column_that_is_null_in_one_file_may_hold_objects_in_another(tmp_path: Path) -> None:
    """Files have no types that could contradict each other (B091)."""
    one = write(tmp_path / "a.jsonl", [{"question": "a", "answer": "#### 1", "extra_info": None}])
    two = write(tmp_path / "b.jsonl", [{"question": "b", "answer": "#### 2", "extra_info": {"k": "v"}}])
    assert [row.extra_info for row in open_dataset([one, two], DataConfig(), None)] == [{}, {"k": "v"}]


def test_the_fingerprint_follows_contents_order_and_settings_but_not_names(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.jsonl", numbered(0, 2)), write(tmp_path / "b.jsonl", numbered(2, 4))
    same = write(tmp_path / "c.jsonl", numbered(0, 2))
    config = DataConfig()

    def of(files: list[Path], settings: DataConfig = config, template: WordTemplate | None = None) -> str:
        return open_dataset(files, settings, template).fingerprint

    assert of([one, two]) == of([same, two])
    different = {of([one, two]), of([two, one]), of([one]), of([one, two], template=WordTemplate())}
    assert len(different | {of([one, two], DataConfig(shuffle=False))}) == 5


def test_too_long_prompts_are_left_out_tools_included(tmp_path: Path) -> None:
    """A prompt that passes is as long as it will be on the server (B098)."""
    tools = [{"name": "calc", "about": "one two three four"}]
    rows = [{"prompt": "a b c", "ground_truth": 1}, {"prompt": "a b c", "ground_truth": 2, "tools": tools}]
    path = write(tmp_path / "a.jsonl", rows)
    dataset = open_dataset([path], DataConfig(max_prompt_tokens=6), WordTemplate())
    assert [row.index for row in dataset] == [0]
    assert dataset.report.files[0].refused.listed[0].text.startswith("its prompt has 10 tokens, more than")


@pytest.mark.parametrize("strict", [True, False])
def test_prompts_that_only_the_runs_tools_make_too_long_are_refused_with_what_to_do(
    tmp_path: Path, *, strict: bool
) -> None:
    """Which rows are left out does not depend on the tools: a trainer does not load them."""
    shown: list[dict[str, Json]] = [{"name": "calc", "about": "one two"}]
    rows = [
        {"prompt": "a b c", "ground_truth": 1},
        {"prompt": "a b c", "ground_truth": 2, "tools": [{"name": "own"}]},
        {"prompt": "a b c d e f g h i", "ground_truth": 3},
        {"prompt": "a", "ground_truth": 4},
    ]
    path, template = write(tmp_path / "a.jsonl", rows), WordTemplate()
    with pytest.raises(DataError) as refused:
        open_dataset([path], DataConfig(max_prompt_tokens=7, strict=strict), template, shown)
    text = str(refused.value)
    assert "1 problem," in text
    assert "line 1: its prompt has 8 tokens with the tools that rollout.tools shows (3 without)" in text
    assert "raise the limit by the 5 tokens" in text
    assert "data.strict" not in text, "it would not help"
    fits, cut = DataConfig(max_prompt_tokens=14), DataConfig(max_prompt_tokens=7, filter_overlong_prompts=False)
    known, unknown = (open_dataset([path], fits, template, tools) for tools in (shown, []))
    assert (len(known), known.fingerprint) == (len(unknown), unknown.fingerprint) == (4, unknown.fingerprint)
    assert len(open_dataset([path], cut.model_copy(update={"truncation": "left"}), template, shown)) == 4


def test_a_data_set_that_filters_empty_is_refused_with_the_counts(tmp_path: Path) -> None:
    """Said when the files are opened, before any server is asked (B097)."""
    path = write(tmp_path / "a.jsonl", [{"prompt": "a b c d", "ground_truth": i} for i in range(5)])
    with pytest.raises(DataError, match="5 of 5 dropped: 5 too_long"):
        open_dataset([path], DataConfig(max_prompt_tokens=3), WordTemplate())


def test_without_the_filter_long_prompts_are_an_error_or_will_be_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "a b", "ground_truth": 1}, {"prompt": "a b c d", "ground_truth": 1}])
    settings = {"max_prompt_tokens": 3, "filter_overlong_prompts": False}
    with pytest.raises(DataError, match=r"line 2: its prompt has 4 tokens, more than data.max_prompt_tokens = 3"):
        open_dataset([path], DataConfig(**settings), WordTemplate())
    dataset = open_dataset([path], DataConfig(**settings, truncation="middle"), WordTemplate())
    assert len(dataset) == 2
    assert dataset.report.files[0].warnings.counts == {"truncated": 1}


def test_a_prompt_is_cut_on_the_side_that_was_asked_for() -> None:
    """What an error says includes both lengths and the row (B099)."""
    ids = [1, 2, 3, 4, 5, 6]
    assert truncate(ids, 4, "left", row=0) == [3, 4, 5, 6]
    assert truncate(ids, 4, "right", row=0) == [1, 2, 3, 4]
    assert truncate(ids, 4, "middle", row=0) == [1, 2, 5, 6]
    assert truncate(ids, 3, "middle", row=0) == [1, 5, 6]
    assert truncate(ids, 1, "middle", row=0) == [6]
    assert truncate(ids, 6, "error", row=0) == ids
    with pytest.raises(DataError, match=r"row 7.*6 tokens.*= 4"):
        truncate(ids, 4, "error", row=7)


def test_many_bad_lines_are_listed_up_to_ten_with_a_total(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{\n" * 500)
    with pytest.raises(DataError) as caught:
        open_dataset([path], DataConfig(), None)
    assert str(caught.value).count("is not JSON") == 10
    assert "500 in total" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.jsonl", None, "does not exist"),
        ("data.csv", b"a,b\n", "ends in '.csv'"),
        ("empty.jsonl", b"", "no rows"),
        ("utf16.jsonl", '{"a": 1}'.encode("utf-16"), "UTF-16"),
        ("latin.jsonl", b'{"question": "caf\xe9", "answer": "#### 1"}\n', "is not UTF-8 at byte 18"),
        ("deep.jsonl", b'{"question": ' + b"[" * 100_000 + b"}", "is not usable JSON"),
        ("huge.jsonl", b'{"question": "q", "answer": 1e999}', "beyond a float"),
        ("digits.jsonl", b'{"question": "q", "answer": ' + b"9" * 5000 + b"}", "is not usable JSON"),
        ("parquet.jsonl", b"PAR1....PAR1", "parquet file under another name"),
        ("wrong_column.jsonl", b'{"text": "q", "ground_truth": 1}', "set data.prompt_key"),
    ],
)
def test_unusable_files_are_refused_in_words(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_dataset([path], DataConfig(), None)
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_no_files_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train_files"):
        open_dataset([], DataConfig(), None)
    with pytest.raises(DataError, match="is a directory"):
        open_dataset([tmp_path], DataConfig(), None)


def test_a_damaged_page_in_the_middle_of_a_parquet_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(numbered(0, 3000)), path, row_group_size=1000, write_page_checksum=True)
    blob = bytearray(path.read_bytes())
    middle = len(blob) // 3
    blob[middle : middle + 64] = bytes(64)
    path.write_bytes(blob)
    with pytest.raises(DataError, match="is damaged"):
        open_dataset([path], DataConfig(), None)


def test_bytes_beside_the_prompt_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{**numbered(0, 1)[0], "image": b"\x89PNG"}]), path)
    dataset = open_dataset([path], DataConfig(), None)
    assert dataset[0].extra_info == {}
    assert dataset.report.files[0].warnings.counts == {"binary_column": 1}


def test_an_open_data_set_holds_a_few_bytes_a_row(tmp_path: Path) -> None:
    rows = ({"prompt": "word " * 100, "ground_truth": i} for i in range(1000))
    path = write(tmp_path / "a.jsonl", list(rows))
    open_dataset([path], DataConfig(), None)  # imports and caches are not the data set's
    tracemalloc.start()
    dataset = open_dataset([path], DataConfig(), None)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100 * len(dataset) < path.stat().st_size / 4
