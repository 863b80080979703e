"""Functions as tools: what the model is shown, what is called with which values, what the model reads."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer, ToolError
from asyncrl.envs.tools.docstrings import described
from asyncrl.envs.tools.functions import FunctionTool, answer_of, load_function
from asyncrl.envs.tools.threads import CallThreads
from asyncrl.errors import ConfigError


class Inner(BaseModel):
    b: int


class Tree(BaseModel):
    left: "Tree | None" = None


@dataclass
class Point:
    x: float
    y: float = 0.0


def search(
    query: str,
    obj: Inner,
    kind: Literal["web", "news"] = "web",
    tags: list[str] | None = None,
    limit: Annotated[int, Field(ge=1, le=10)] = 3,
) -> dict[str, object]:
    """Look things up.

    Long text
    over two lines.

    Args:
        query: what is looked for,
            in words.
        obj (Inner): nested: with a colon

        kind: where
    Returns:
        tags: not an argument
    """
    return {"query": query, "b": obj.b, "kind": kind, "tags": tags, "limit": limit}


def tool_of(function: Callable[..., object], threads: int = 2) -> FunctionTool:
    return FunctionTool(function, CallThreads(threads))


def call(function: Callable[..., object], **arguments: Json) -> ToolAnswer:
    async def run() -> ToolAnswer:
        return await tool_of(function).execute("i", arguments)

    return asyncio.run(run())


def test_the_schema_has_the_docstring_the_hints_and_nested_schemas_written_out() -> None:
    """B147: a nested schema reaches the model whole."""
    schema = tool_of(search).schema
    assert schema["type"] == "function"
    function = schema["function"]
    assert isinstance(function, dict)
    assert function["name"] == "search"
    assert function["description"] == "Look things up.\nLong text over two lines."
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what is looked for, in words."},
            "obj": {
                "type": "object",
                "properties": {"b": {"type": "integer"}},
                "required": ["b"],
                "description": "nested: with a colon",
            },
            "kind": {"type": "string", "enum": ["web", "news"], "default": "web", "description": "where"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "limit": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
        },
        "required": ["query", "obj"],
        "additionalProperties": False,
    }


def test_arguments_are_converted_and_defaults_are_the_functions_own() -> None:
    answer = call(search, query="q", obj={"b": "4"}, limit=2)
    assert answer.text == '{"query": "q", "b": 4, "kind": "web", "tags": null, "limit": 2}'
    assert call(lambda_with_point, at={"x": 1}).text == "1.0 0.0"


def lambda_with_point(at: Point) -> str:
    """Takes an object."""
    return f"{at.x} {at.y}"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({}, ["query is missing", "obj is missing"]),
        ({"query": "q", "obj": {"b": 1}, "zzz": 1}, ["no argument 'zzz'"]),
        ({"query": "q", "obj": {}}, ["obj.b: Field required"]),
        ({"query": 3, "obj": {"b": 1}}, ["query: ", "not 3"]),
        ({"query": "q", "obj": {"b": 1}, "limit": 11}, ["limit: ", "less than or equal to 10", "not 11"]),
        ({"query": "q", "obj": None}, ["obj: "]),
    ],
)
def test_wrong_arguments_are_told_and_nothing_is_called(arguments: dict[str, Json], parts: list[str]) -> None:
    with pytest.raises(ToolError) as told:
        call(search, **arguments)
    assert str(told.value).startswith("wrong arguments: ")
    assert [part for part in parts if part not in str(told.value)] == []


VALUES = st.none() | st.text() | st.floats() | st.lists(st.booleans(), max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=6))
def test_whatever_the_arguments_are_the_answer_is_short(arguments: dict[str, Any]) -> None:
    """B142: a message about junk does not repeat it."""
    with pytest.raises(ToolError) as told:
        call(search, **{**arguments, "obj": "x" * 100_000})
    assert len(str(told.value)) < 1000


def no_docstring(a: int) -> int:
    return a


def no_hint(a) -> str:  # type: ignore[no-untyped-def]
    """Has none."""
    return str(a)


def variadic(*rows: int) -> int:
    """Takes any number."""
    return sum(rows)


def contains_itself(tree: Tree) -> str:
    """A tree."""
    return str(tree)


def no_schema(thread: threading.Thread) -> str:
    """Of a type that is no data."""
    return str(thread)


def unknown_hint(a: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Of a type that is not there."""
    return str(a)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_docstring, "no docstring"),
        (no_hint, "parameter a has no type hint"),
        (variadic, r"\*rows: int cannot be given by name"),
        (contains_itself, "Tree contains itself"),
        (no_schema, "parameter thread has no JSON schema"),
        (unknown_hint, "type hints cannot be read"),
    ],
)
def test_a_function_that_no_model_could_call_is_refused(function: Callable[..., object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tool_of(function)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("as it is", "as it is"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (Inner(b=3), '{"b": 3}'),
        (None, "null"),
        (2.5, "2.5"),
        ("caf\u00e9", "caf\u00e9"),
        (["\u4f60"], '["\u4f60"]'),
    ],
)
def test_what_is_returned_becomes_text(returned: object, text: str) -> None:
    assert answer_of(returned) == ToolAnswer(text)


def test_an_answer_is_passed_on_and_what_json_cannot_hold_is_a_type_error() -> None:
    answer = ToolAnswer("t", reward=0.5, metrics={"n": 1.0})
    assert answer_of(answer) is answer
    with pytest.raises(TypeError, match="returned a Thread"):
        answer_of(threading.Thread())


def test_a_function_that_is_not_async_runs_in_another_thread_and_one_that_is_in_the_loops() -> None:
    def where() -> int:
        """The thread."""
        return threading.get_ident()

    async def where_async() -> int:
        """The thread."""
        return threading.get_ident()

    assert call(where).text != str(threading.get_ident())
    assert call(where_async).text == str(threading.get_ident())


def test_what_the_function_raises_is_raised() -> None:
    def fails(how: str) -> str:
        """Fails."""
        raise {"tool": ToolError("told"), "stop": StopIteration("s"), "exit": SystemExit(3)}.get(how, KeyError("k"))

    with pytest.raises(ToolError, match="told"):
        call(fails, how="tool")
    with pytest.raises(KeyError):
        call(fails, how="other")
    with pytest.raises(RuntimeError, match="StopIteration: s"):
        call(fails, how="stop")
    with pytest.raises(RuntimeError, match="SystemExit: 3"):  # it ends one call, not the worker
        call(fails, how="exit")


def test_a_call_that_hangs_costs_a_thread_and_no_more_and_is_free_when_it_comes_back() -> None:
    """B144: nobody waits for a stuck tool, not even at the end."""
    release, entered = threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        """Hangs."""
        entered.release()
        release.wait(30)
        return "late"

    async def run() -> None:
        tool = tool_of(hang, threads=2)
        calls = [asyncio.create_task(tool.execute("i", {})) for _ in range(2)]
        for _ in calls:
            assert await asyncio.to_thread(entered.acquire, timeout=30)
        for task in calls:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True)
        )
        with pytest.raises(ToolError, match="all 2 threads"):
            await tool.execute("i", {})
        release.set()
        assert (await _when_free(tool)).text == "late"

    asyncio.run(run())


async def _when_free(tool: FunctionTool) -> ToolAnswer:
    async with asyncio.timeout(30):
        while True:
            try:
                return await tool.execute("i", {})
            except ToolError:
                await asyncio.sleep(0)


def test_calls_over_the_number_of_threads_wait_for_others() -> None:
    most, now, lock, together = 0, 0, threading.Lock(), threading.Barrier(2)

    def meet() -> str:
        """Needs two at once."""
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(30)
        with lock:
            now -= 1
        return "met"

    async def run() -> list[ToolAnswer]:
        tool = tool_of(meet, threads=2)
        return await asyncio.gather(*(tool.execute("i", {}) for _ in range(6)))

    assert [answer.text for answer in asyncio.run(run())] == ["met"] * 6
    assert most == 2


def test_a_function_is_named_by_file_or_module_and_what_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text('def double(n: int) -> int:\n    """Twice."""\n    return 2 * n\n\nclass Thing: ...\nBAD = 3\n')
    threads = CallThreads(1)
    assert load_function(f"{file}:double", threads).name == "double"
    for name, why in (("BAD", "is a int, wanted a function"), ("Thing", "is a type, wanted"), ("no", "has no 'no'")):
        with pytest.raises(ConfigError, match=why):
            load_function(f"{file}:{name}", threads)
    with pytest.raises(ConfigError, match=r"rollout\.tools\.functions = .* cannot be a tool: .*no type hint"):
        load_function(f"{__name__}:no_hint", threads)


def test_a_docstring_without_sections_is_all_summary() -> None:
    assert described(None).summary == ""
    assert described("One line.") == described("\n    One line.\n    ")
    found = described("First.\n\nSecond: with colon\nArgs:\n  a (int, optional): x\n  *b: y\n\nRaises:\n  c: z")
    assert found.summary == "First.\nSecond: with colon"
    assert found.arguments == {"a": "x", "b": "y"}


@given(st.text())
def test_any_text_is_a_docstring(text: str) -> None:
    described(text)
