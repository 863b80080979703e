"""Every odd file gets exactly what a person would expect of it."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from asyncrl.config import DataConfig
from asyncrl.data import Dataset, open_dataset
from asyncrl.data.answers import final_number, truth_number
from asyncrl.data.check import CheckReport, run_check
from asyncrl.errors import DataError
from asyncrl.rollout.chat import ChatTemplate
from tests.support.chat_models import make_model_dir
from tests.support.word_template import WordTemplate

FILES = Path(__file__).parents[3] / "support" / "data_files"


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("chatml"), "chatml")


@pytest.fixture(scope="module")
def long_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rows, the second of 1.2 MB."""
    path = tmp_path_factory.mktemp("long") / "long_line.jsonl"
    questions = ["short 1+1?", "filler " + "lorem ipsum " * 100_000 + "2+2?", "short 3+3?"]
    rows = [{"question": question, "answer": f"#### {2 * i + 2}"} for i, question in enumerate(questions)]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def check(name: str, **settings: object) -> CheckReport:
    return run_check([FILES / name], config=DataConfig(**settings), tokenizer_dir=None)


def load(name: str, template: ChatTemplate | None = None, **settings: object) -> Dataset:
    return open_dataset([FILES / name], DataConfig(**settings), template)


def refused_places(report: CheckReport) -> list[str]:
    return [finding.place for finding in report.data.files[0].refused.listed]


def error_places(report: CheckReport) -> list[str]:
    return [finding.place for finding in report.data.files[0].errors.listed]


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("bom_crlf_blank.jsonl", 2),
        ("no_final_newline.jsonl", 2),
        ("u2028_nel_in_text.jsonl", 2),
        ("lone_surrogate.jsonl", 2),
        ("answers_formats.jsonl", 18),
        ("ground_truth_types.jsonl", 4),
        ("big_ints.jsonl", 1),
        ("empty_prompts.jsonl", 1),
        ("duplicates.jsonl", 4),
        ("windows_paths.jsonl", 2),
        ("control_tokens.jsonl", 3),
        ("tool_calls_malformed.jsonl", 9),
        ("chat_basic.parquet", 3),
        ("nested_nulls.parquet", 2),
        ("tools_union.parquet", 2),
        ("typed_scalars.parquet", 2),
    ],
)
def test_a_usable_file_has_the_expected_number_of_rows_and_exit_code_0(name: str, usable: int) -> None:
    report = check(name)
    assert (report.data.num_usable, report.exit_code) == (usable, 0)
    assert len(load(name)) == usable
    json.dumps(report.to_json())


@pytest.mark.parametrize(
    ("name", "places", "words"),
    [
        ("bad_line.jsonl", ["line 2"], "',' delimiter"),
        ("not_objects.jsonl", ["line 2", "line 3", "line 4", "line 5"], "is a list"),
        ("json_array_not_lines.jsonl", ["line 1"], "JSON array and not JSON Lines"),
        ("nan_inf_dupkeys.jsonl", ["line 1", "line 2", "line 3"], "'answer' twice"),
        ("zero_rows.parquet", ["the file"], "no rows"),
        ("truncated.parquet", ["the file"], "not a complete parquet file"),
        ("is_really_jsonl.parquet", ["the file"], ".jsonl"),
    ],
)
def test_a_file_with_errors_is_refused_with_every_place_and_exit_code_2(
    name: str, places: list[str], words: str
) -> None:
    """Which line it is (B096), also of a key that is there twice (B100)."""
    report = check(name)
    assert error_places(report) == places
    assert (report.data.num_usable, report.exit_code) == (0, 2)
    assert words in report.render()
    with pytest.raises(DataError) as caught:
        load(name)
    assert name in str(caught.value)
    assert all(place in str(caught.value) for place in places)


def test_without_strict_a_bad_line_is_left_out_and_counted() -> None:
    dataset = load("bad_line.jsonl", strict=False)
    assert [row.index for row in dataset] == [0, 2]
    assert dataset.report.refused == {"not_json": 1}


def test_the_bom_and_carriage_returns_are_in_no_value() -> None:
    """B095, as an editor writes it."""
    rows = list(load("bom_crlf_blank.jsonl"))
    assert [row.ground_truth for row in rows] == ["7", "4"]
    assert rows[0].messages[0]["content"] == "A shop has 3 pens and buys 4. How many?"
    assert [row.index for row in rows] == [0, 1]


def test_unicode_line_separators_stay_inside_the_text() -> None:
    """B094, and what else splitlines() would cut at."""
    rows = list(load("u2028_nel_in_text.jsonl"))
    assert "\u2028" in str(rows[0].messages[0]["content"])
    assert {"\u0085", "\f", "\u001c"} <= set(str(rows[1].messages[0]["content"]))


def test_a_lone_surrogate_is_replaced_and_counted_and_a_real_emoji_is_kept() -> None:
    dataset = load("lone_surrogate.jsonl")
    assert [row.messages[0]["content"] for row in dataset] == [
        "half emoji \ufffd then 1+2?",
        "good emoji \U0001f600 2+2?",
    ]
    warnings = dataset.report.files[0].warnings
    assert [(finding.place, finding.reason) for finding in warnings.listed] == [("line 1", "lone_surrogate")]


def test_answers_are_understood_in_every_format_and_the_others_are_listed() -> None:
    """A truth without an answer is said when the data is read (B126)."""
    rows = list(load("answers_formats.jsonl"))
    numbers: list[float | None] = [1234, 18, 18, 50, -3, -3, 3.5, 0.5, 0.5, 72, 7, 9, None, 42, 42, None, 1000, 42]
    assert [truth_number(row.ground_truth) for row in rows] == numbers
    assert [row.ground_truth for row in rows][:3] == ["1234", "18", "18"]
    assert final_number(str(rows[12].ground_truth), "flexible") == Fraction(12)
    listed = check("answers_formats.jsonl").data.files[0].warnings.listed
    assert [(finding.place, finding.reason) for finding in listed] == [
        ("line 13", "no_answer"),
        ("line 16", "no_answer"),
    ]


def test_truths_of_different_types_compare_equal_and_unusable_ones_are_refused_by_line() -> None:
    """No row is left out without a word (B092)."""
    rows = list(load("ground_truth_types.jsonl"))
    assert [truth_number(row.ground_truth) for row in rows[:3]] == [Fraction(42)] * 3
    assert rows[3].ground_truth == ["42", "forty-two"]
    assert refused_places(check("ground_truth_types.jsonl")) == ["line 5", "line 6", "line 7", "line 8"]


def test_big_integers_stay_exact_and_their_fields_are_named() -> None:
    info = load("big_ints.jsonl")[0].extra_info
    assert info == {"seed": 18446744073709551616, "neg": -9223372036854775809, "max_u64": 18446744073709551615}
    texts = [finding.text for finding in check("big_ints.jsonl").data.files[0].warnings.listed]
    assert [text.split()[0] for text in texts] == ["extra_info.seed", "extra_info.neg"]


def test_empty_prompts_are_refused_by_line() -> None:
    """Empty, white space, null and missing: four rows that never reach a server (B101)."""
    assert refused_places(check("empty_prompts.jsonl")) == ["line 1", "line 2", "line 3", "line 4"]
    assert [row.index for row in load("empty_prompts.jsonl")] == [4]


def test_repeated_prompts_stay_separate_rows_and_are_warned_about() -> None:
    """Rows of one text are not one prompt: their truths may differ (B085)."""
    dataset = load("duplicates.jsonl")
    assert [row.index for row in dataset] == [0, 1, 2, 3]
    assert dataset.report.warnings.counts == {"duplicate": 1, "other_truth": 1}
    assert [finding.place for finding in dataset.report.warnings.listed] == ["row 1", "row 2"]


def test_a_line_of_a_megabyte_is_read_filtered_and_never_echoed(long_line: Path) -> None:
    whole = open_dataset([long_line], DataConfig(), None)
    assert len(whole) == 3
    assert len(str(whole[1].messages[0]["content"])) == 1_200_011
    dataset = open_dataset([long_line], DataConfig(max_prompt_tokens=128), WordTemplate())
    assert [row.index for row in dataset] == [0, 2]
    assert dataset.report.refused == {"too_long": 1}
    with pytest.raises(DataError) as caught:
        open_dataset([long_line], DataConfig(max_prompt_tokens=128, filter_overlong_prompts=False), WordTemplate())
    assert "line 2" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_bad_line_of_a_megabyte_is_not_echoed(long_line: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(long_line.read_text().replace('"answer": "#### 4"}', '"answer": "#### 4"'))
    report = run_check([path], config=None, tokenizer_dir=None)
    assert error_places(report) == ["line 2"]
    assert len(report.render()) < 1000


def test_backslashes_are_as_in_the_json() -> None:
    rows = list(load("windows_paths.jsonl"))
    assert rows[0].messages[0]["content"] == "How many files in C:\\new\\table\\users?"
    assert rows[0].extra_info == {"source": "D:\\data\\train\\0001.json"}
    assert rows[1].messages[0]["content"] == "path with \\u0041 text and trailing \\"


def test_control_tokens_in_a_question_open_no_turn_and_are_flagged(chatml: Path) -> None:
    """As many beginnings of turns as messages (B111)."""
    template = ChatTemplate.from_model_dir(chatml)
    dataset = load("control_tokens.jsonl", template)
    start = template.encode("<|im_start|>")[0]
    for row in dataset:
        assert template.render(row.messages, add_generation_prompt=False).count(start) == 1
    assert "{{ messages }} {% raw %} {# x #} 1+0?" in template.render_text(dataset[2].messages)
    flagged = dataset.report.files[0].warnings.listed
    assert [(finding.place, finding.reason) for finding in flagged] == [("line 1", "control_token")]
    without_tokenizer = check("control_tokens.jsonl").data.files[0].warnings.listed
    assert [finding.place for finding in without_tokenizer] == ["line 1"]


def test_verl_rows_become_plain_messages_truths_and_info() -> None:
    rows = list(load("chat_basic.parquet"))
    assert [row.ground_truth for row in rows] == ["3", "4", "10"]
    assert rows[0].messages == ({"role": "user", "content": "1+2?"},)
    assert type(rows[0].messages[0]) is dict
    assert {row.data_source for row in rows} == {"openai/gsm8k"}
    assert rows[2].extra_info == {"ability": "math", "index": 2, "split": "train"}


def test_padding_nulls_of_columns_are_dropped_and_arguments_are_decoded_once(chatml: Path) -> None:
    """Nothing reads None (B112), and arguments that are text are encoded once (B109)."""
    first, second = load("nested_nulls.parquet")
    assert first.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2*3?"})
    assert first.extra_info == {}
    call = {"id": "c1", "function": {"name": "calc", "arguments": {"expr": "4*5"}}}
    assert second.messages[1] == {"role": "assistant", "tool_calls": [call]}
    assert second.messages[2] == {"role": "tool", "content": "20", "name": "calc"}
    text = ChatTemplate.from_model_dir(chatml).render_text(second.messages)
    assert "None" not in text
    assert '"arguments": {"expr": "4*5"}' in text


def test_each_tool_keeps_its_own_parameters_only() -> None:
    """Not the union of all tools that a column holds (B089)."""
    first, second = load("tools_union.parquet")
    assert [list(tool["parameters"]) for tool in first.tools] == [["expr"], ["q"]]
    assert second.tools == ()


def test_typed_columns_become_plain_python_values() -> None:
    """Numbers and flags of Python, not of the file format (B088)."""
    first, last = load("typed_scalars.parquet")
    assert (first.ground_truth, type(first.ground_truth)) == (7, int)
    assert first.extra_info == {"weight": 0.5, "enable_thinking": True, "level": 1}
    assert (last.index, last.ground_truth, last.extra_info) == (2, -3, {"level": 3})
    json.dumps([dict(first.extra_info), first.ground_truth])
    assert refused_places(check("typed_scalars.parquet")) == ["row 1"]


def test_every_file_at_once_is_one_message_with_all_problems() -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(sorted(FILES.glob("*")), DataConfig(), None)
    assert str(caught.value).count("so it cannot be used") == 7


def test_a_file_that_was_changed_after_opening_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    shutil.copy(FILES / "no_final_newline.jsonl", path)
    dataset = open_dataset([path], DataConfig(), None)
    with path.open("r+") as file:
        file.write("x")
    with pytest.raises(DataError, match="changed"):
        dataset[0]
