"""Modules named `verl...` for files of tools that import them, while such a file is loaded and verl is not installed.

There are those of STAND_INS and no others: what else a file imports from verl is refused by name, so that nothing
behaves differently from what its author tried. They are gone again once the file is loaded; `import verl` of other code
finds what is installed, and nothing else.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, ModuleType
from typing import TypeVar

from asyncrl.envs.tools.verl import schemas
from asyncrl.envs.tools.verl.base_interaction import BaseInteraction
from asyncrl.envs.tools.verl.base_tool import BaseTool
from asyncrl.envs.tools.verl.function_tool import function_tool
from asyncrl.envs.user_code import load_named
from asyncrl.errors import ConfigError

T = TypeVar("T")


def rollout_trace_op(function: T) -> T:
    """verl's decorator that records calls for a tracing service; nothing is recorded here."""
    return function


def register_tool(name: str) -> Callable[[T], T]:
    """verl's decorator that gives a class a short name; tool_config.yaml names classes in full."""
    return lambda cls: cls


STAND_INS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "verl": {},
        "verl.interactions": {},
        "verl.interactions.base": {"BaseInteraction": BaseInteraction},
        "verl.tools": {},
        "verl.tools.base_tool": {"BaseTool": BaseTool},
        "verl.tools.schemas": {
            name: value
            for name, value in vars(schemas).items()
            if inspect.isclass(value) and value.__module__ == schemas.__name__ and not name.startswith("_")
        },
        "verl.tools.function_tool": {"function_tool": function_tool},
        "verl.tools.registry": {"register_tool": register_tool},
        "verl.utils": {},
        "verl.utils.rollout_trace": {"rollout_trace_op": rollout_trace_op},
    }
)
"""Module -> what it holds."""


class NotAStandIn(ImportError):
    """A file of tools needs more of verl than there are stand-ins for."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "verl" and not name.startswith("verl."):
            return None
        if name not in STAND_INS:
            there = ", ".join(module for module, held in STAND_INS.items() if held)
            raise NotAStandIn(
                f"it imports {name}, and verl is not installed. Without verl there are: {there}",
                name=name,
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=any(s.startswith(f"{name}.") for s in STAND_INS))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(STAND_INS[module.__name__])


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotAStandIn(f"{self.__name__} has no {name} while verl is not installed", name=self.__name__)


@contextmanager
def stand_ins() -> Iterator[None]:
    """Have them within the block, if verl itself is not installed. Not for two threads at once."""
    if importlib.util.find_spec("verl") is not None:  # verl itself, or a block around this one
        yield
        return
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name == "verl" or name.startswith("verl.")]:
            del sys.modules[name]


def _is_installed() -> bool:
    spec = importlib.util.find_spec("verl")
    return spec is not None and not isinstance(spec.loader, _Finder)


def load_written_for_verl(key: str, name: str) -> object:
    """As load_named, with stand-ins.

    Raises:
        ConfigError: also if it needs more of verl than there is.
    """
    try:
        with stand_ins():
            found = load_named(key, name)
    except ConfigError as error:
        if isinstance(error.__cause__, NotAStandIn):
            raise ConfigError(
                f"{key} = {name}: {error.__cause__}. Install verl beside asyncrl, or write it without that import."
            ) from error.__cause__
        raise
    if not _is_installed() and (lines := _late_imports(sys.modules.get(getattr(found, "__module__", "")))):
        raise ConfigError(
            f"{key} = {name}: line {', '.join(map(str, lines))} of its file imports verl inside a function, and verl "
            "is not there when that runs. Move the import to the top of the file."
        )
    return found


def _late_imports(module: ModuleType | None) -> list[int]:
    """Lines of a module where verl is imported inside a function, which would be tried when the stand-ins are gone."""
    if module is None:
        return []
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # no source: nothing can be said
        return []
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = (inner for node in functions for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom))
    return sorted({node.lineno for node in inside if _imports_verl(node)})


def _imports_verl(node: ast.Import | ast.ImportFrom) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    is_relative = isinstance(node, ast.ImportFrom) and node.level > 0
    return not is_relative and any(name.partition(".")[0] == "verl" for name in names)
