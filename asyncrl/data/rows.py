"""One row of a data set: how a record of a file becomes a prompt with its ground truth."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asyncrl.data.answers import MARKER, canonical, final_number, truth_number
from asyncrl.data.source import Note, RowRefused
from asyncrl.data.values import Json, drop_nulls, excerpt, kind, oversized_ints

DEFAULT_SOURCE = "gsm8k"
"""The data source of a row that names none: a question with a final number, in GSM8K's form."""
NUMERIC_SOURCES = frozenset({"gsm8k", "openai/gsm8k", "gsm8k_flexible", "arithmetic"})
"""Sources whose reward compares numbers: a truth without one can never be met, so it is reported before a run."""

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")  # templates paste it into control tokens, so it must not hold any


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt as plain JSON values.

    index counts rows of all files in order, refused ones included, so that it survives a change of filters.
    ground_truth is as in the file; a list means any of its items; None: the environment rewards without one.
    extra_info also has the columns that nothing else uses.
    """

    index: int
    data_source: str
    messages: tuple[Mapping[str, Json], ...]
    ground_truth: Json
    extra_info: Mapping[str, Json]
    tools: tuple[Mapping[str, Json], ...] = ()


def row_from_record(values: Mapping[str, Json], *, index: int, prompt_key: str) -> tuple[PromptRow, list[Note]]:
    """A row from a record's values, and what is odd about it.

    The prompt is in `prompt_key` (messages or text) or in `question`; the truth in reward_model.ground_truth,
    ground_truth, or after `####` in answer.
    Raises:
        RowRefused: no prompt, an empty one, malformed messages or tools, no usable truth.
    """
    used = {"data_source", "extra_info", "tools", "reward_model"}
    key = _prompt_column(values, prompt_key)
    messages = _messages(values[key])
    source = values.get("data_source") or DEFAULT_SOURCE
    if not isinstance(source, str):
        raise RowRefused("bad_source", f"data_source is {kind(source)}, wanted a string")
    truth_key, truth = _truth(values, source, has_question=isinstance(values[key], str))
    extra = _extra_info(values, used | {key, truth_key})
    row = PromptRow(index, source, messages, truth, extra, _tools(values.get("tools")))
    return row, list(_notes(row, has_truth=truth_key != ""))


def _prompt_column(values: Mapping[str, Json], prompt_key: str) -> str:
    present = [key for key in (prompt_key, "question") if key in values]
    if not present:
        columns = ", ".join(map(repr, values)) or "none"
        raise RowRefused(
            "no_prompt", f"has no {prompt_key!r} or 'question' (it has {excerpt(columns)}); set data.prompt_key"
        )
    return next((key for key in present if values[key] is not None), present[0])


def _messages(prompt: Json) -> tuple[Mapping[str, Json], ...]:
    if prompt is None or (isinstance(prompt, str) and not prompt.strip()) or prompt == []:
        raise RowRefused("empty_prompt", f"its prompt is {'null' if prompt is None else 'empty'}")
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    if not isinstance(prompt, list):
        raise RowRefused("bad_messages", f"its prompt is {kind(prompt)}, wanted text or a list of messages")
    messages = tuple(_message(message, i) for i, message in enumerate(prompt))
    if not any(str(message.get("content", "")).strip() for message in messages):
        raise RowRefused("empty_prompt", "none of its messages has any text")
    return messages


def _message(message: Json, i: int) -> Mapping[str, Json]:
    if not isinstance(message, dict):
        raise RowRefused("bad_messages", f"message {i} is {kind(message)}, wanted an object with role and content")
    clean = drop_nulls(message)  # a null key is the padding of columns; templates would print it as None
    assert isinstance(clean, dict)
    role = clean.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise RowRefused("bad_messages", f"message {i} has the role {excerpt(repr(role))}, wanted a name such as user")
    content = clean.get("content", "")
    if isinstance(content, list):
        clean["content"] = _text_of_parts(content, i)
    elif not isinstance(content, str):
        raise RowRefused("bad_messages", f"the content of message {i} is {kind(content)}, wanted text")
    if "content" not in clean and not clean.get("tool_calls"):
        raise RowRefused("bad_messages", f"message {i} has no content")
    if "tool_calls" in clean:
        clean["tool_calls"] = _tool_calls(clean["tool_calls"], i)
    return clean


def _text_of_parts(parts: list[Json], i: int) -> str:
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise RowRefused("not_text", f"message {i} has parts that are not text; only text prompts can be trained on")
    return "".join(str(text) for text in texts)


def _tool_calls(calls: Json, i: int) -> list[Json]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowRefused("bad_messages", f"tool_calls of message {i} must be a list of objects")
    # Templates want arguments as an object; as text they would be encoded a second time.
    return [_decoded_call(call, i) for call in calls if isinstance(call, dict)]


def _decoded_call(call: dict[str, Json], i: int) -> Json:
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        try:
            return {**call, "function": {**function, "arguments": json.loads(str(function["arguments"]))}}
        except (ValueError, RecursionError):
            raise RowRefused("bad_messages", f"the arguments of a tool call in message {i} are not JSON") from None
    return call


def _truth(values: Mapping[str, Json], source: str, *, has_question: bool) -> tuple[str, Json]:
    """The column that holds the truth ("" for none) and the truth."""
    model = values.get("reward_model")
    if isinstance(model, dict):
        return "reward_model", _checked_truth(model.get("ground_truth"), "reward_model.ground_truth")
    if "ground_truth" in values:
        return "ground_truth", _checked_truth(values["ground_truth"], "ground_truth")
    if "answer" in values:
        return "answer", _checked_truth(_marked_answer(values["answer"], source), "answer")
    if has_question:
        raise RowRefused("no_truth", "has no ground_truth and no answer")
    return "", None  # a conversation: what its reward needs is the environment's business


def _marked_answer(answer: Json, source: str) -> Json:
    if not isinstance(answer, str) or MARKER not in answer:
        return answer
    number = final_number(answer) if source in NUMERIC_SOURCES else None
    return canonical(number) if number is not None else answer.rsplit(MARKER, 1)[1].strip() or answer


def _checked_truth(truth: Json, name: str) -> Json:
    if truth is None or isinstance(truth, bool):
        raise RowRefused("no_truth", f"{name} is {'missing or null' if truth is None else 'a boolean'}")
    if (isinstance(truth, str) and not truth.strip()) or truth in ([], {}):
        raise RowRefused("no_truth", f"{name} is empty")
    if isinstance(truth, list) and any(item is None or isinstance(item, bool | dict) for item in truth):
        raise RowRefused("no_truth", f"{name} is a list with items that are no answers")
    return truth


def _extra_info(values: Mapping[str, Json], used: set[str]) -> dict[str, Json]:
    info = values.get("extra_info")
    if info is not None and not isinstance(info, dict):
        raise RowRefused("bad_extra_info", f"extra_info is {kind(info)}, wanted an object")
    unused = {key: value for key, value in values.items() if key not in used and value is not None}
    return {**unused, **(info or {})}


def _tools(tools: Json) -> tuple[Mapping[str, Json], ...]:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            raise RowRefused("bad_tools", "tools is text but not JSON") from None
    if tools is None:
        return ()
    clean = drop_nulls(tools)
    if not isinstance(clean, list):
        raise RowRefused("bad_tools", f"tools is {kind(tools)}, wanted a list of objects")
    found = tuple(tool for tool in clean if isinstance(tool, dict))
    if len(found) != len(clean):
        raise RowRefused("bad_tools", "tools has items that are no objects")
    return found


def _notes(row: PromptRow, *, has_truth: bool) -> Iterable[Note]:
    if not has_truth:
        yield Note("no_truth", "has no ground truth: only an environment that needs none can reward it")
    elif row.data_source in NUMERIC_SOURCES:
        truths = row.ground_truth if isinstance(row.ground_truth, list) else [row.ground_truth]
        if all(truth_number(truth) is None for truth in truths):
            yield Note("no_answer", f"its truth has no final number: {excerpt(str(row.ground_truth))!r}")
    for name, value in (("ground_truth", row.ground_truth), ("extra_info", dict(row.extra_info))):
        for field in oversized_ints(value, name):
            yield Note("big_int", f"{field} does not fit 64 bits; it is kept exactly")
