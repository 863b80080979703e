"""What every kind of tool promises to those who call it, whatever it does."""

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.tools import McpServerConfig, PythonToolConfig, ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import Tool, ToolError
from asyncrl.envs.tools.catalogue import NAME, load_tools
from tests.support.verl_tools import OLD, entry, schema, write_config

FUNCTION = '''
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''


def _builtin(name: str, **python: Any) -> Callable[[Path], ToolsConfig]:
    return lambda folder: ToolsConfig(builtin=(name,), python=PythonToolConfig(**python))


def _function(folder: Path) -> ToolsConfig:
    (folder / "adds.py").write_text(FUNCTION)
    return ToolsConfig(functions=(f"{folder / 'adds.py'}:add",))


def _verl(folder: Path) -> ToolsConfig:
    module = f"contract_{folder.name}"
    (folder / f"{module}.py").write_text(OLD)
    own = entry(f"{module}.Guess", schema("guess", answer={"type": "string"}), penalty=0.0)
    return ToolsConfig(config_path=write_config(folder, own))


def _mcp(folder: Path) -> ToolsConfig:
    url = _SERVER.get_or_skip()
    return ToolsConfig(mcp_servers=(McpServerConfig(name="s", url=url, tools=("add",), sessions=2),))


class _Server:
    """One MCP server for all tests of this file: it takes a second to start."""

    url = ""

    def get_or_skip(self) -> str:
        if not self.url:
            pytest.skip("the extra asyncrl[mcp] is missing")
        return self.url


_SERVER = _Server()


@pytest.fixture(scope="module", autouse=True)
def _mcp_server() -> Iterator[None]:
    if importlib.util.find_spec("mcp") is None:
        yield
        return
    from tests.support.mcp_server import http_server

    with http_server() as server:
        _SERVER.url = server.url
        yield


KINDS: Mapping[str, tuple[Callable[[Path], ToolsConfig], dict[str, Json], str, dict[str, Json]]] = {
    "calc": (_builtin("calc"), {"expr": "40+2"}, "42", {"expr": 3}),
    "python": (_builtin("python"), {"code": "40+2"}, "42\n", {"code": 3}),
    "python, kept": (_builtin("python", keep_state=True), {"code": "40+2"}, "42\n", {}),
    "function": (_function, {"a": 40, "b": 2}, "42", {"a": "x", "b": 2}),
    "verl": (_verl, {"answer": "a"}, "right: False", {}),
    "mcp": (_mcp, {"a": 40, "b": 2}, "42", {"a": "x"}),
}
"""Kind -> its configuration, a call, its answer, and a call that is wrong."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def loaded(kind: str, folder: Path) -> AsyncIterator[Tool]:
    """The one tool of a kind; nothing of it goes on once it is closed."""
    catalogue = await load_tools(KINDS[kind][0](folder))
    async with catalogue:
        (tool,) = catalogue.tools.values()
        assert isinstance(tool, Tool)
        yield tool
    await catalogue.close()  # again, and nothing happens
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def test_a_tool_has_a_life(kind: str, tmp_path: Path) -> None:
    """Made, called at the same time by several episodes and twice by each, asked for its reward, released."""
    _, arguments, text, _ = KINDS[kind]

    async def live() -> None:
        async with loaded(kind, tmp_path) as tool:
            ids = [f"instance-{i}" for i in range(3)]
            for each in ids:
                await tool.create(each)
            answers = await asyncio.gather(*(tool.execute(each, arguments) for each in [*ids, *ids]))
            assert [answer.text for answer in answers] == [text] * 6
            assert not any(answer.is_error for answer in answers)
            rewards = [await tool.calc_reward(each) for each in ids]
            assert all(reward is None or isinstance(reward, float) for reward in rewards)
            for each in ids:
                await tool.release(each)

    asyncio.run(live())


def test_wrong_arguments_are_an_error_for_the_model_and_break_nothing(kind: str, tmp_path: Path) -> None:
    """B141: values of the wrong shape end nothing."""
    _, arguments, text, wrong = KINDS[kind]

    async def live() -> None:
        async with loaded(kind, tmp_path) as tool:
            await tool.create("i")
            try:
                told = await tool.execute("i", wrong)
            except ToolError as error:
                assert str(error)  # noqa: PT017 - an answer that is an error would do as well
            except (KeyError, TypeError):
                assert kind == "verl"  # the class does not check
            else:
                assert told.is_error
            assert (await tool.execute("i", arguments)).text == text
            await tool.release("i")

    asyncio.run(live())


def test_an_instance_that_was_never_called_is_released_too(kind: str, tmp_path: Path) -> None:
    async def live() -> None:
        async with loaded(kind, tmp_path) as tool:
            await tool.create("i")
            await tool.release("i")

    asyncio.run(live())


def test_its_name_is_its_schemas_and_the_schema_is_plain_json(kind: str, tmp_path: Path) -> None:
    async def read() -> tuple[str, Mapping[str, Json], bool]:
        async with loaded(kind, tmp_path) as tool:
            return tool.name, tool.schema, tool.keeps_state

    name, found, keeps = asyncio.run(read())
    assert NAME.match(name)
    assert keeps == (kind in ("verl", "python, kept"))
    assert json.loads(json.dumps(found)) == found
    function = found["function"]
    assert isinstance(function, dict)
    assert function["name"] == name
    assert function["description"]
    assert isinstance(function["parameters"], dict)
    assert function["parameters"]["type"] == "object"


def test_no_module_of_verl_was_left_behind() -> None:
    assert importlib.util.find_spec("verl") is not None or "verl" not in sys.modules
