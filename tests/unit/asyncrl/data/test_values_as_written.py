"""A row has the values that its file has, whatever stands in the rows and files beside it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config import DataConfig
from asyncrl.data import Dataset, open_dataset
from asyncrl.data.values import Json
from asyncrl.rollout.chat import ChatTemplate
from tests.support.chat_models import make_model_dir


def opened(path: Path, template: ChatTemplate | None = None) -> Dataset:
    return open_dataset([path], DataConfig(), template)


def lines(path: Path, rows: Sequence[Json]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_key_that_the_first_row_lacks_is_kept(tmp_path: Path) -> None:
    """There is no schema of the first row (B090)."""
    path = lines(
        tmp_path / "a.jsonl",
        [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2", "level": 3}],
    )
    assert [row.extra_info for row in opened(path)] == [{}, {"level": 3}]


@pytest.mark.parametrize("truth", ["2024-01-01 00:00:00", "007", "1e5", "true", " 5 "])
def test_a_string_stays_the_string_in_both_formats(tmp_path: Path, truth: str) -> None:
    """No type is inferred from what a text looks like (B093)."""
    row: dict[str, Json] = {"question": "q", "ground_truth": truth}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    for path in (lines(tmp_path / "a.jsonl", [row]), tmp_path / "a.parquet"):
        assert opened(path)[0].ground_truth == truth


def test_truths_of_different_types_in_one_file_are_kept_as_given(tmp_path: Path) -> None:
    """No column has one type (B092)."""
    truths: list[Json] = [42, "42", 3.5, ["a", "b"]]
    path = lines(tmp_path / "a.jsonl", [{"question": "q", "ground_truth": truth} for truth in truths])
    found = [row.ground_truth for row in opened(path)]
    assert found == truths
    assert [type(truth) for truth in found] == [int, str, float, list]


def test_messages_tools_and_flags_of_parquet_are_plain_and_render(tmp_path: Path) -> None:
    """Lists and no arrays, whose truth value a template could not ask for (B088); no key of another tool (B089)."""
    tools: list[Json] = [
        {"name": "calc", "parameters": {"expr": {"type": "string"}}},
        {"name": "find", "parameters": {"q": {"type": "string"}}},
    ]
    row = {
        "prompt": [{"role": "user", "content": "hi"}],
        "tools": tools,
        "enable_thinking": True,
        "ground_truth": "1",
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    template = ChatTemplate.from_model_dir(make_model_dir(tmp_path / "model", "chatml"))
    found = opened(tmp_path / "a.parquet", template)[0]
    assert (type(found.messages[0]), found.messages) == (dict, ({"role": "user", "content": "hi"},))
    assert list(found.tools) == tools
    assert found.extra_info["enable_thinking"] is True
    text = template.render_text(found.messages, found.tools)
    assert all(json.dumps(tool) in text for tool in tools)


def test_a_byte_order_mark_carriage_returns_and_blank_lines_are_no_content(tmp_path: Path) -> None:
    """Of two rows, the last without a line feed (B095)."""
    first, second = b'{"question": "a?", "answer": "#### 1"}', b'{"question": "b?", "answer": "#### 2"}'
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + first + b"\r\n\r\n" + second)
    rows = list(opened(path))
    assert [(row.messages[0]["content"], row.ground_truth) for row in rows] == [("a?", "1"), ("b?", "2")]


def test_separators_that_python_splits_lines_at_are_text(tmp_path: Path) -> None:
    """Raw U+2028 and U+0085 inside a string (B094)."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a\u2028b\u0085c?", "answer": "#### 1"}\n', encoding="utf-8")
    assert [row.messages[0]["content"] for row in opened(path)] == ["a\u2028b\u0085c?"]
