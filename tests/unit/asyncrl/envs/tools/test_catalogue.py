"""What a configuration of tools is refused for, before anything is generated."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.tools import ToolsConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.catalogue import Catalogue, Listed, _check, load_tools
from asyncrl.errors import ConfigError


class Named:
    """A tool that has a name and a schema, and does nothing."""

    keeps_state = False

    def __init__(self, name: str, schema: Mapping[str, Json] | None = None) -> None:
        self.name = name
        own: dict[str, Json] = {"type": "function", "function": {"name": name}}
        self.schema: Mapping[str, Json] = own if schema is None else schema

    async def create(self, instance_id: str, **kwargs: Json) -> None: ...

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer("")

    async def calc_reward(self, instance_id: str) -> None: ...

    async def release(self, instance_id: str) -> None: ...


def load(**given: Any) -> Catalogue:
    async def run() -> Catalogue:
        async with await load_tools(ToolsConfig(**given)) as catalogue:
            return catalogue

    return asyncio.run(run())


def test_tools_are_listed_by_kind_with_their_source(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text('def f() -> str:\n    """F."""\n    return ""\n\n\ndef g() -> str:\n    """G."""\n    return ""\n')
    found = load(builtin=("calc",), functions=(f"{file}:g", f"{file}:f"))
    assert [(entry.tool.name, entry.kind, entry.source) for entry in found.listed] == [
        ("calc", "builtin", "asyncrl"),
        ("g", "function", f"{file}:g"),
        ("f", "function", f"{file}:f"),
    ]
    assert list(found.tools) == ["calc", "g", "f"]
    assert load().tools == {}


def test_what_is_not_there_is_named_with_what_is() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.tools\.builtin names 'pyhton'; there is calc, python"):
        load(builtin=("pyhton",))
    with pytest.raises(ConfigError, match=r"rollout\.tools\.functions: there is no file none\.py"):
        load(functions=("none.py:f",))


@pytest.mark.parametrize("name", ["", "two words", "a.b", "x" * 65, "\u00e9", "a\n"])
def test_a_name_that_no_parser_is_sure_of_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="has a name that no model could be sure to call"):
        _check([Listed(Named(name), "k", "s")])


@pytest.mark.parametrize("schema", [{}, {"function": None}, {"function": {"name": "other"}}])
def test_a_schema_of_another_form_or_name_is_refused(schema: dict[str, Json]) -> None:
    with pytest.raises(ConfigError, match="has a schema of another name, or of another form"):
        _check([Listed(Named("t", schema), "k", "s")])


def test_two_tools_of_one_name_are_refused_with_both_places() -> None:
    with pytest.raises(ConfigError, match="two tools are named t: that of here and that of there"):
        _check([Listed(Named("t"), "a", "here"), Listed(Named("u"), "a", "x"), Listed(Named("t"), "b", "there")])


def test_what_was_loaded_is_closed_when_a_later_kind_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Held(Named):
        async def close(self) -> None:
            closed.append(self.name)

    async def make(name: str, config: ToolsConfig) -> Held:
        return Held(name)

    monkeypatch.setattr("asyncrl.envs.tools.catalogue.load_builtin", make)
    with pytest.raises(ConfigError):
        load(builtin=("one",), functions=("none.py:f",))
    assert closed == ["one"]
    load(builtin=("two",))
    assert closed == ["one", "two"]
