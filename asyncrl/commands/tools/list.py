"""List the tools that rollout.tools names, after loading all of them as a worker does."""

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import facts

if TYPE_CHECKING:
    from asyncrl.envs.tools.catalogue import Listed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON, with whole schemas")


def run(args: argparse.Namespace) -> int:
    """Load, print, close."""
    from asyncrl.envs.tools.catalogue import load_tools

    async def listed() -> "tuple[Listed, ...]":
        async with await load_tools(config.rollout.tools) as catalogue:
            return catalogue.listed

    config = load_from(args).config
    found = asyncio.run(listed())
    if args.json:
        print(json.dumps([to_json(entry) for entry in found]))
    elif not found:
        print("rollout.tools names no tools: see builtin, functions, config_path and mcp_servers there")
    else:
        print("\n\n".join(facts(rows(entry)) for entry in found))
    return 0


def to_json(entry: "Listed") -> dict[str, object]:
    """Everything about a tool."""
    return {
        "name": entry.tool.name,
        "kind": entry.kind,
        "from": entry.source,
        "keeps_state": entry.tool.keeps_state,
        "schema": entry.tool.schema,
    }


def rows(entry: "Listed") -> Iterator[tuple[str, str]]:
    """A tool for people."""
    function = entry.tool.schema["function"]
    assert isinstance(function, dict)
    yield entry.tool.name, f"{entry.kind}, from {entry.source}"
    yield "", str(function.get("description", ""))
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping):
        return
    required = parameters.get("required")
    properties = parameters.get("properties")
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        must = "" if isinstance(required, list) and name in required else " (optional)"
        yield f"  {name}", f"{json.dumps(schema, ensure_ascii=False)}{must}"
