"""A tool class of verl's form as a tool, whichever of verl's return conventions it keeps."""

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.verl.agent_data import AgentDataTable
from asyncrl.envs.tools.verl.base_tool import BaseTool
from asyncrl.envs.tools.verl.config_file import ClassEntry
from asyncrl.envs.tools.verl.stand_ins import load_written_for_verl, stand_ins
from asyncrl.errors import ConfigError

METHODS = ("create", "execute", "calc_reward", "release")


class VerlTool:
    """An object of the user's class. One for all episodes of a worker; the class keeps them apart by instance id.

    `create` may return the id, another id, or either with a ToolResponse, which verl shows to nobody. `execute` may
    return a ToolResponse, a dict with `text`, or text; alone, or with a reward and metrics. Rewards that are None count
    as none. The row's create_kwargs come both as keywords and as `create_kwargs`, as old and new versions have it.
    """

    keeps_state = True

    def __init__(self, own: Any, table: AgentDataTable) -> None:  # Any: a class that only looks like BaseTool
        self._own, self._table = own, table
        self._ids: dict[str, str] = {}
        self.name: str = own.name
        self.schema: Mapping[str, Json] = _plain(own.tool_schema)

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Make the instance. Raises what the class raises; then it has none, and none will be released."""
        self._table.enter(instance_id, self.name, kwargs)
        self._ids[instance_id] = instance_id  # if it is cancelled, its half-made instance is released under this one
        try:
            offered = {**kwargs, "create_kwargs": kwargs}
            returned = await _awaited(self._own.create(instance_id, **_accepted(self._own.create, offered, kwargs)))
        except Exception:
            del self._ids[instance_id]
            raise
        given = returned[0] if isinstance(returned, tuple) else returned
        if isinstance(given, str):
            self._ids[instance_id] = given

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """Call the class. Raises what it raises, and TypeError for what cannot be shown to a model of text."""
        execute = self._own.execute
        given: object = dict(arguments)
        if _wants_text(execute):
            given = json.dumps(given, ensure_ascii=False)
        offered = {"agent_data": self._table.of(instance_id)}
        return answer_of_triple(
            await _awaited(execute(self._ids[instance_id], given, **_accepted(execute, offered, {})))
        )

    async def calc_reward(self, instance_id: str) -> float | None:
        """What the class says; None if it does not say anything, or its method is the base's."""
        if getattr(type(self._own), "calc_reward", None) is BaseTool.calc_reward or instance_id not in self._ids:
            return None
        return _number(await _awaited(self._own.calc_reward(self._ids[instance_id])), "calc_reward")

    async def release(self, instance_id: str) -> None:
        """Drop the instance, if the class made one."""
        self._table.leave(instance_id)
        own_id = self._ids.pop(instance_id, None)
        if own_id is not None:
            await _awaited(self._own.release(own_id))


def load_class(entry: ClassEntry, table: AgentDataTable, folder: Path) -> VerlTool:
    """Make the tool that an entry of tool_config.yaml describes.

    Args:
        folder: of the file; modules that are not on the path are looked for there and in the working directory.
    Raises:
        ConfigError: the class cannot be loaded or made; names the entry and why.
    """
    module, _, attribute = entry.class_name.rpartition(".")
    key = f"{entry.place}.class_name"
    put_on_path(module, (Path.cwd(), folder))
    with stand_ins():
        cls = load_written_for_verl(key, f"{module}:{attribute}")
        if not inspect.isclass(cls) or not all(callable(getattr(cls, method, None)) for method in METHODS):
            raise ConfigError(f"{key} = {entry.class_name} is no class with the methods {', '.join(METHODS)}.")
        try:
            make: Callable[..., object] = cls
            return VerlTool(make(config=dict(entry.config), tool_schema=entry.schema), table)
        except Exception as error:  # anybody's code
            raise ConfigError(f"{key} = {entry.class_name} cannot be made: {type(error).__name__}: {error}") from error


def put_on_path(module: str, folders: tuple[Path, ...]) -> None:
    """Put the first folder that has the module at the end of the path, as verl's users have it by PYTHONPATH."""
    top = module.partition(".")[0]
    for folder in folders:
        if str(folder) not in sys.path and ((folder / top).is_dir() or (folder / f"{top}.py").is_file()):
            sys.path.append(str(folder))
            return


def _accepted(method: Any, offered: Mapping[str, Any], must: Mapping[str, Any]) -> dict[str, Any]:
    """Of the offered keywords those that the method takes; TypeError if one that it must take is not among them."""
    parameters = inspect.signature(method).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return dict(offered)
    if "create_kwargs" not in parameters and (lost := [name for name in must if name not in parameters]):
        raise TypeError(f"{method.__qualname__} takes no {', '.join(lost)}, which the row's create_kwargs give")
    return {name: value for name, value in offered.items() if name in parameters}


def _wants_text(execute: Any) -> bool:
    """Whether the arguments come as JSON text, as in verl before 0.4: `parameters: str`."""
    parameters = list(inspect.signature(execute).parameters.values())
    return len(parameters) > 1 and parameters[1].annotation in (str, "str")


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def answer_of_triple(returned: Any) -> ToolAnswer:
    """What verl's tools return: a response, or one with a reward, or with a reward and metrics.

    Raises:
        TypeError: it is none of them, or holds what cannot be shown to a model of text.
    """
    response, reward, metrics = (*returned, None, None)[:3] if isinstance(returned, tuple) else (returned, None, None)
    if isinstance(response, BaseModel):
        response = response.model_dump()
    if isinstance(response, Mapping):
        if shown := [name for name in ("image", "video") if response.get(name)]:
            raise TypeError(f"it returned {' and '.join(shown)}, which a model of text cannot be shown")
        response = response.get("text") or ""
    if not isinstance(response, str):
        raise TypeError(f"it returned a {type(response).__name__}, wanted text or a ToolResponse")
    numbers = {
        str(name): float(value)
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return ToolAnswer(response, _number(reward, "execute"), numbers)


def _number(value: object, method: str) -> float | None:
    """A reward. Tools that have none say None or an empty list."""
    if value is None or value == []:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{method} returned {value!r:.100} as a reward, wanted a finite number or None")
    return float(value)


def _plain(schema: Any) -> dict[str, Json]:
    """The schema as verl shows it to models: what was written, without what was not."""
    if isinstance(schema, BaseModel):
        return schema.model_dump(exclude_unset=True, exclude_none=True)
    return dict(schema)
