"""Files of tools that were written for verl load unchanged where it is not installed, and are called as they expect."""

import asyncio
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.tools import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import Tool
from asyncrl.envs.tools.catalogue import load_tools
from asyncrl.envs.tools.verl.agent_data import AgentData, AgentDataTable
from asyncrl.envs.tools.verl.config_file import ClassEntry, read_tool_config
from asyncrl.envs.tools.verl.tool import VerlTool, load_class
from asyncrl.errors import ConfigError
from tests.support.verl_tools import NEW, OLD, entry, schema, write_config

GUESS = schema("guess", answer={"type": "string", "enum": ["a", "b"]})

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("verl") is not None, reason="verl is installed, so its own modules are used"
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with both files. What was imported from it is forgotten at the end."""
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "old_form.py").write_text(OLD)
    (tmp_path / "new_form.py").write_text(NEW)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def loaded(folder: Path, *entries: dict[str, Any]) -> Mapping[str, Tool]:
    async def load() -> Mapping[str, Tool]:
        async with await load_tools(ToolsConfig(config_path=write_config(folder, *entries))) as catalogue:
            return catalogue.tools

    return asyncio.run(load())


def test_a_tool_of_the_old_form_runs_through_its_life(folder: Path) -> None:
    tool = loaded(folder, entry("old_form.Guess", GUESS, penalty=-0.5))["guess"]
    assert tool.schema == GUESS
    assert tool.keeps_state

    async def live() -> None:
        await tool.create("one", ground_truth="a")
        await tool.create("two", ground_truth="b")
        wrong, right = await asyncio.gather(tool.execute("one", {"answer": "b"}), tool.execute("two", {"answer": "b"}))
        assert (wrong.text, wrong.reward, wrong.metrics) == ("right: False", -0.5, {"right": 0.0})
        assert (right.text, right.reward, right.metrics) == ("right: True", 0.0, {"right": 1.0})
        assert [await tool.calc_reward(name) for name in ("one", "two")] == [0.0, 1.0]
        await tool.release("one")
        await tool.release("two")

    asyncio.run(live())
    log = sys.modules["old_form"].LOG
    assert log == [("create", "one"), ("create", "two"), ("release", "one"), ("release", "two")]


def test_a_tool_of_the_new_form_has_its_own_schema_id_and_agent_data(folder: Path) -> None:
    """B147: what its schema nests reaches the model."""
    tool = loaded(folder, entry("new_form.Notes", None))["notes"]
    function = tool.schema["function"]
    assert isinstance(function, dict)
    assert function["parameters"] == {
        "type": "object",
        "properties": {"entry": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 9}}}},
        "required": ["entry"],
    }

    async def live() -> list[str]:
        await tool.create("i", notes=["before"])
        texts = [(await tool.execute("i", {"entry": {"text": text}})).text for text in ("x", "y")]
        with pytest.raises(TypeError, match="returned image, which a model of text cannot be shown"):
            await tool.execute("i", {"entry": {"text": "picture"}})
        assert await tool.calc_reward("i") is None  # the base's method has no opinion
        await tool.release("i")
        return texts

    assert asyncio.run(live()) == ["mine-i: ['before', 'x']", "mine-i: ['before', 'x', 'y']"]


def test_verl_is_nowhere_once_the_files_are_loaded(folder: Path) -> None:
    loaded(folder, entry("old_form.Guess", GUESS), entry("new_form.Notes", None))
    assert [name for name in sys.modules if name.partition(".")[0] == "verl"] == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("verl.tools.base_tool")


def test_an_instance_whose_create_raised_is_not_released_by_the_class(folder: Path) -> None:
    tool = loaded(folder, entry("old_form.Guess", GUESS))["guess"]

    async def live() -> None:
        with pytest.raises(ValueError, match="refused"):
            await tool.create("one", ground_truth="refuse")
        await tool.release("one")

    asyncio.run(live())
    assert sys.modules["old_form"].LOG == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import verl.trainer", "imports verl.trainer, and verl is not installed"),
        ("from verl.utils.reward_score import gsm8k", "imports verl.utils.reward_score"),
        ("from verl.tools.schemas import Nothing", "verl.tools.schemas has no Nothing while verl"),
        ("import verl; verl.DataProto", "verl has no DataProto"),
        ("raise SystemExit(2)", "SystemExit"),
        ("class Own: ...", "no class with the methods create, execute, calc_reward, release"),
        ("Own = 3", "no class with the methods"),
        ("", "has no 'Own'"),
        (
            "from verl.tools.base_tool import BaseTool\nclass Own(BaseTool): ...",
            "cannot be made: ValueError: it has no schema",
        ),
        (
            "from verl.tools.base_tool import BaseTool\nclass Own(BaseTool):\n  async def execute(self, *a):\n"
            "    from verl.tools.schemas import ToolResponse",
            "line 4 of its file imports verl inside a function",
        ),
    ],
)
def test_a_file_that_needs_more_is_refused_with_what_it_needs(folder: Path, source: str, why: str) -> None:
    (folder / "own_tool.py").write_text(source)
    with pytest.raises(ConfigError) as refused:
        loaded(folder, entry("own_tool.Own", None))
    assert why in str(refused.value)
    assert "tools[0].class_name" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tools: []", ["line 1, tools: "]),
        ("tool: []", ["tools: Field required", "tool: is not known here"]),
        ("tools:\n- class_name: a.B\n  config: {}\n", ["line 3, tools[0].config.type: Field required"]),
        ("tools:\n- class_name: a.B\n  config:\n    type: benchmax\n", ["line 4, tools[0].config.type: ", "'native'"]),
        ("tools:\n- class_name: B\n  config: {type: native}\n", ["line 2, tools[0].class_name: "]),
        (
            "tools:\n- class_name: a.B\n  config: {type: native}\n  tool_shema: {}\n",
            ["line 4, tools[0].tool_shema: is not known here"],
        ),
        (
            "tools:\n- class_name: a.B\n  config: {type: native}\n  tool_schema:\n    type: function\n    function:\n"
            "      name: n\n      description: d\n      parameters:\n        type: object\n"
            "        properties: {a: 3}\n",
            ["line 11, tools[0].tool_schema.function.parameters.properties.a: "],
        ),
        (
            "tools:\n- class_name: a.B\n  config: {type: native}\n  tool_schema:\n    type: function\n    function:\n"
            "      name: n\n      description: d\n      parameters: {type: object, required: [b]}\n",
            ["parameters", "required names b, which properties does not have"],
        ),
        ("tools:\n- class_name: a.B\n  config: {type: mcp}\n", ["tools[0].mcp is missing"]),
        ("tools:\n- class_name: a.B\n  config: {type: !!python/name:os.system x}\n", ["the tag", "is not read"]),
        ("tools:\n  - a: [\n", ["not YAML"]),
    ],
)
def test_a_bad_configuration_is_refused_with_file_line_and_field(tmp_path: Path, text: str, parts: list[str]) -> None:
    """B220: a tag runs nothing."""
    path = tmp_path / "tool_config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_tool_config(path)
    assert str(path) in str(refused.value)
    assert [part for part in parts if part not in str(refused.value)] == []


def test_a_file_that_is_not_there_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.tools\.config_path = .*none\.yaml cannot be read: No such file"):
        read_tool_config(tmp_path / "none.yaml")


class Stub:
    """A class that only looks like verl's, with methods of a test's choice."""

    name = "stub"
    tool_schema = schema("stub")

    async def create(self, instance_id: str) -> str:
        return instance_id

    async def calc_reward(self, instance_id: str) -> object:
        return self.worth

    async def release(self, instance_id: str) -> None:
        self.released = [*getattr(self, "released", []), instance_id]

    def __init__(self, execute: Any = None, worth: object = None) -> None:
        self.worth = worth
        if execute is not None:
            self.execute = execute


def executed(execute: Any, arguments: dict[str, Json]) -> Any:
    async def live() -> object:
        tool = VerlTool(Stub(execute), AgentDataTable())
        await tool.create("i")
        return await tool.execute("i", arguments)

    return asyncio.run(live())


def test_arguments_come_as_text_where_the_method_says_so() -> None:
    async def execute(instance_id: str, parameters: str, **kwargs: object) -> tuple[str, float, dict[str, object]]:
        return parameters, 0.0, {}

    assert executed(execute, {"a": "\u4f60"}).text == '{"a": "\u4f60"}'


@pytest.mark.parametrize(
    ("returned", "text", "reward"),
    [
        ("t", "t", None),
        (("t",), "t", None),
        (("t", 1), "t", 1.0),
        (({"text": "t"}, None, None), "t", None),
        (({"text": None}, 0.0, {"a": float("nan")}), "", 0.0),
    ],
)
def test_every_form_of_return_is_understood(returned: object, text: str, reward: float | None) -> None:
    async def execute(instance_id: str, parameters: dict[str, Any]) -> object:
        return returned

    answer = executed(execute, {})
    assert (answer.text, answer.reward, answer.metrics) == (text, reward, {})


@pytest.mark.parametrize("returned", [3, None, ("t", "1.0"), ("t", float("nan")), ("t", float("inf"), {})])
def test_a_return_that_is_none_of_them_is_an_error_and_no_number(returned: object) -> None:
    async def execute(instance_id: str, parameters: dict[str, Any]) -> object:
        return returned

    with pytest.raises(TypeError, match="wanted"):
        executed(execute, {})


@pytest.mark.parametrize(("worth", "reward"), [(None, None), ([], None), (1, 1.0), (0.25, 0.25)])
def test_a_reward_that_says_nothing_is_none(worth: object, reward: float | None) -> None:
    async def live() -> float | None:
        tool = VerlTool(Stub(worth=worth), AgentDataTable())
        await tool.create("i")
        return await tool.calc_reward("i")

    assert asyncio.run(live()) == reward


def test_kwargs_that_a_class_cannot_take_are_an_error_and_a_cancelled_create_is_released_once() -> None:
    own = Stub()

    async def live() -> None:
        tool = VerlTool(own, AgentDataTable())
        with pytest.raises(TypeError, match="takes no ground_truth, which the row's create_kwargs give"):
            await tool.create("i", ground_truth="x")
        await tool.release("i")
        assert not hasattr(own, "released")
        entered = asyncio.Event()

        async def hang(instance_id: str) -> str:
            entered.set()
            return await asyncio.Future[str]()

        own.create = hang  # type: ignore[method-assign]
        making = asyncio.create_task(tool.create("j"))
        await entered.wait()
        making.cancel()
        await asyncio.wait({making})
        await tool.release("j")

    asyncio.run(live())
    assert own.released == ["j"]


def test_agent_data_is_shared_by_the_tools_of_an_episode_and_gone_with_the_last() -> None:
    table = AgentDataTable()
    table.enter("e.1", "a", {"x": 1})
    table.enter("e.2", "b", {})
    table.enter("f.1", "a", {})
    assert table.of("e.1") is table.of("e.2")
    assert table.of("e.1").tools_kwargs == {"a": {"create_kwargs": {"x": 1}}, "b": {"create_kwargs": {}}}
    table.leave("e.1")
    assert table.of("e.2").request_id == "e"
    table.leave("e.2")
    with pytest.raises(KeyError):
        table.of("e.2")
    assert table.of("f.1").request_id == "f"
    with pytest.raises(AttributeError, match="agent_data has no messages here"):
        _ = AgentData("e").messages


def test_a_class_is_found_in_the_folder_of_its_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("NAME = 'helped'\n")
    (package / "own.py").write_text(
        "from verl.tools.base_tool import BaseTool\nfrom .helper import NAME\nclass Own(BaseTool):\n  said = NAME\n"
    )
    monkeypatch.chdir("/")
    found = ClassEntry("place", "pack.own.Own", {}, read_schema(folder))
    assert load_class(found, AgentDataTable(), folder).name == "guess"
    assert sys.modules["pack.own"].Own.said == "helped"


def read_schema(folder: Path) -> Any:
    first = read_tool_config(write_config(folder, entry("a.B", GUESS)))[0]
    assert isinstance(first, ClassEntry)
    return first.schema


FUNCTIONS = '''
from verl.tools.function_tool import function_tool
from verl.tools.schemas import ToolResponse

@function_tool
def plain(n: int) -> str:
    """Doubles."""
    return str(2 * n)

@function_tool("renamed")
async def other(n: int):
    """Doubles, for a reward."""
    return ToolResponse(text=str(2 * n)), 0.5, {"n": n}

@function_tool(schema={"type": "function", "function": {"name": "shown", "description": "As shown."}})
def shown(n: int):
    return {"text": n}
'''


def test_functions_with_verls_decorator_are_tools_under_its_name_schema_and_returns(folder: Path) -> None:
    (folder / "fns.py").write_text(FUNCTIONS)
    names = tuple(f"{folder / 'fns.py'}:{name}" for name in ("plain", "other", "shown"))

    async def load() -> list[Any]:
        async with await load_tools(ToolsConfig(functions=names)) as catalogue:
            assert list(catalogue.tools) == ["plain", "renamed", "shown"]
            assert catalogue.tools["shown"].schema["function"] == {"name": "shown", "description": "As shown."}
            return [await tool.execute("i", {"n": 2}) for tool in catalogue.tools.values()]

    answers = asyncio.run(load())
    assert [answer.text for answer in answers] == ["4", "4", '{"text": 2}']
    assert (answers[1].reward, answers[1].metrics) == (0.5, {"n": 2.0})
    (folder / "more.py").write_text("import verl.trainer\n")
    with pytest.raises(ConfigError, match=r"more\.py:f: it imports verl\.trainer, and verl is not installed"):
        asyncio.run(load_tools(ToolsConfig(functions=(f"{folder / 'more.py'}:f",))))
