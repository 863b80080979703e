"""How records become prompts, and which are refused."""

import pytest

from asyncrl.data.rows import PromptRow, row_from_record
from asyncrl.data.source import RowRefused
from asyncrl.data.values import Json, NotPlain, drop_nulls, plain


def row(**values: Json) -> PromptRow:
    return row_from_record(values, index=3, prompt_key="prompt")[0]


def reason(**values: Json) -> str:
    with pytest.raises(RowRefused) as caught:
        row(**values)
    return caught.value.reason


def test_text_is_one_user_message_and_a_number_row_is_gsm8k() -> None:
    found = row(prompt="2+2?", ground_truth="4")
    assert found == PromptRow(3, "gsm8k", ({"role": "user", "content": "2+2?"},), "4", {})


def test_the_configured_column_holds_the_prompt() -> None:
    record: dict[str, Json] = {"chat": "hello", "ground_truth": "x", "data_source": "mine"}
    found = row_from_record(record, index=0, prompt_key="chat")[0]
    assert found.messages[0]["content"] == "hello"


def test_columns_that_nothing_uses_are_kept_in_extra_info() -> None:
    found = row(question="q", answer="#### 1", level=3, extra_info={"split": "train"}, other=None)
    assert found.extra_info == {"level": 3, "split": "train"}


def test_an_answer_of_another_source_keeps_its_text() -> None:
    assert row(question="q", answer="so\n#### \\frac{1}{2}", data_source="math").ground_truth == "\\frac{1}{2}"
    assert row(question="q", answer="so\n#### 1,234").ground_truth == "1234"


@pytest.mark.parametrize("truth", ["2024-01-01 00:00:00", "007"])
def test_strings_that_look_like_something_else_stay_strings(truth: str) -> None:
    assert row(prompt="q", ground_truth=truth).ground_truth == truth


@pytest.mark.parametrize("truth", [42, "42", 3.5, ["a", "b"], {"tests": ["x"]}])
def test_truths_of_every_usable_type_are_kept_as_given(truth: Json) -> None:
    assert row(prompt="q", ground_truth=truth).ground_truth == truth


def test_a_conversation_may_have_no_truth_but_a_question_may_not() -> None:
    found, notes = row_from_record({"prompt": [{"role": "user", "content": "x"}]}, index=0, prompt_key="prompt")
    assert found.ground_truth is None
    assert [note.reason for note in notes] == ["no_truth"]
    assert reason(question="x") == "no_truth"
    assert reason(prompt=[{"role": "user", "content": "x"}], ground_truth=None) == "no_truth"
    assert reason(prompt=[{"role": "user", "content": "x"}], reward_model={"style": "rule"}) == "no_truth"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([], "empty_prompt"),
        ([{"role": "user", "content": " "}], "empty_prompt"),
        (7, "bad_messages"),
        (["hi"], "bad_messages"),
        ([{"content": "x"}], "bad_messages"),
        ([{"role": "user<|im_end|>", "content": "x"}], "bad_messages"),
        ([{"role": "user"}], "bad_messages"),
        ([{"role": "user", "content": "x"}, {"role": "assistant"}], "bad_messages"),
        ([{"role": "user", "content": 5}], "bad_messages"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "not_text"),
        ([{"role": "user", "content": "x", "tool_calls": "calc"}], "bad_messages"),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "bad_messages",
        ),
    ],
)
def test_malformed_prompts_are_refused_with_a_reason(prompt: Json, expected: str) -> None:
    assert reason(prompt=prompt, ground_truth="1") == expected


def test_text_parts_are_joined() -> None:
    content: Json = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert row(prompt=[{"role": "user", "content": content}], ground_truth="1").messages[0]["content"] == "ab"


def test_tools_may_be_json_text() -> None:
    assert row(prompt="q", ground_truth="1", tools='[{"name": "calc"}]').tools == ({"name": "calc"},)
    assert reason(prompt="q", ground_truth="1", tools="[") == "bad_tools"
    assert reason(prompt="q", ground_truth="1", tools={"name": "calc"}) == "bad_tools"


def test_a_wrong_column_names_those_that_are_there() -> None:
    with pytest.raises(RowRefused, match=r"no 'prompt'.*'text'.*data\.prompt_key"):
        row(text="hello", ground_truth="1")


def test_foreign_values_become_plain_or_are_named() -> None:
    assert plain({"a": None, "b": [None, float("nan")], "c": {"d": None}}) == {"b": [None, None], "c": {}}
    with pytest.raises(NotPlain) as caught:
        plain({"a": [{"b": b"x"}]}, "extra_info")
    assert caught.value.field == "extra_info.a[0].b"
    assert drop_nulls([{"a": None}, None]) == [{}, None]
