"""Programs that answer a model's turn as its user: verl's interactions, loaded from the files that verl reads."""

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from asyncrl import waits
from asyncrl.config.interaction import InteractionConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json, replace_surrogates
from asyncrl.envs.checked_files import read_yaml
from asyncrl.envs.tools.instances import GRACE_S, Releases, within
from asyncrl.envs.tools.verl.stand_ins import stand_ins
from asyncrl.envs.tools.verl.tool import put_on_path
from asyncrl.envs.user_code import load_named
from asyncrl.errors import ConfigError

KEY = "rollout.interaction.config_path"
WAIT_NAME = "episode waits for its user"
METHODS = ("start_interaction", "generate_response")


@dataclass(frozen=True)
class Reply:
    """What the user says to a turn. ends: the conversation is over. score: of the turn; None: no opinion."""

    text: str
    ends: bool
    score: float | None


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Entry(_Closed):
    name: str | None = None
    class_name: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    config: dict[str, Any] = Field(default_factory=dict)


class _File(_Closed):
    interaction: list[_Entry] = Field(min_length=1)


class Interactions:
    """Those of a worker, by name. Each has one object, which keeps its conversations apart by instance id."""

    def __init__(self, own: Mapping[str, Any], timeout_s: float, counts: Counter[str]) -> None:
        """counts: gets tool_releases_failed, of conversations that were not ended."""
        self._own, self._timeout_s = own, timeout_s
        self._releases = Releases(counts)

    def talk(self, row: PromptRow) -> "Talk | None":
        """The conversation of an episode, not begun yet; None: the row has no user.

        Raises:
            ValueError: its interaction_kwargs name nobody, or somebody unknown.
        """
        kwargs = row.extra_info.get("interaction_kwargs")
        if kwargs is None:
            return None
        name = kwargs.get("name") if isinstance(kwargs, Mapping) else None
        if not isinstance(kwargs, Mapping) or not isinstance(name, str) or name not in self._own:
            there = ", ".join(self._own) or f"none, as {KEY} is not set"
            raise ValueError(
                f"row {row.index} talks with {name!r} by extra_info.interaction_kwargs.name; there is {there}"
            )
        return Talk(self._own[name], name, kwargs, self._timeout_s, self._releases)

    async def close(self) -> None:
        """Wait for the conversations that are still being ended."""
        await self._releases.drain(self._timeout_s + 4 * GRACE_S)


class Talk:
    """The conversation of one episode. has_begun: another worker could not go on with it."""

    def __init__(
        self, own: Any, name: str, kwargs: Mapping[str, Json], timeout_s: float, releases: Releases
    ) -> None:  # Any: anybody's class
        self._own, self._name, self._kwargs, self._timeout_s, self._releases = own, name, kwargs, timeout_s, releases
        self._instance_id = uuid4().hex
        self.has_begun = self._has_ended = False

    async def reply(self, messages: Sequence[Mapping[str, Json]]) -> Reply:
        """What the user says to the last message.

        Args:
            messages: the conversation so far.
        Raises:
            Exception: whatever the class raises, Overdue, or TypeError for an answer of another form.
        """
        with waits.timed(WAIT_NAME, lambda: self._name):
            if not self.has_begun:
                self.has_begun = True
                begun = await within(self._timeout_s, self._own.start_interaction(self._instance_id, **self._kwargs))
                self._instance_id = begun if isinstance(begun, str) else self._instance_id
            said = [dict(message) for message in messages]
            returned = await within(
                self._timeout_s, self._own.generate_response(self._instance_id, said, **self._kwargs)
            )
        return _reply(returned)

    async def close(self) -> None:
        """End the conversation, once, if it was begun; later calls do nothing."""
        if not self.has_begun or self._has_ended:
            return
        self._has_ended = True
        await self._releases.run(f"user {self._name}", self._timeout_s, self._finalize())

    async def _finalize(self) -> None:
        finalize = getattr(self._own, "finalize_interaction", None)
        if finalize is not None:
            # verl's base takes no id, and its subclasses do.
            takes_id = bool(inspect.signature(finalize).parameters)
            await (finalize(self._instance_id) if takes_id else finalize())


async def load_interactions(config: InteractionConfig, counts: Counter[str]) -> Interactions:
    """Load what the section names.

    Raises:
        ConfigError: the file or a class cannot be read, loaded or made; names the entry.
    """
    own: dict[str, Any] = {}
    entries = [] if config.config_path is None else read_yaml(config.config_path, KEY, _File).interaction
    for number, entry in enumerate(entries):
        assert config.config_path is not None  # it has entries
        place = f"{config.config_path}, interaction[{number}]"
        made = _load(entry, place, config.config_path.resolve().parent)
        name = entry.name or str(getattr(made, "name", ""))
        if not name or name in own:
            raise ConfigError(f"{place}: its name is {name!r}, which is empty or taken. Give it a name of its own.")
        own[name] = made
    return Interactions(own, config.timeout_s, counts)


def _load(entry: _Entry, place: str, folder: Path) -> Any:
    module, _, attribute = entry.class_name.rpartition(".")
    put_on_path(module, (Path.cwd(), folder))
    with stand_ins():
        made: Any = load_named(f"{place}.class_name", f"{module}:{attribute}")
        if not inspect.isclass(made) or not all(hasattr(made, method) for method in METHODS):
            raise ConfigError(f"{place}.class_name = {entry.class_name} is no class with {' and '.join(METHODS)}.")
        try:
            cls: Any = made
            return cls(config={"name": entry.name, **entry.config} if entry.name else dict(entry.config))
        except Exception as error:  # anybody's code
            raise ConfigError(
                f"{place}.class_name = {entry.class_name} cannot be made: {type(error).__name__}: {error}"
            ) from error


def _reply(returned: object) -> Reply:
    if not isinstance(returned, tuple) or len(returned) < 3:
        raise TypeError(f"generate_response returned {returned!r:.100}, wanted (ends, text, score, data)")
    ends, text, score = returned[:3]
    if not isinstance(text, str) or not isinstance(ends, bool):
        raise TypeError(f"generate_response returned {returned[:2]!r:.100}, wanted whether it ends, and text")
    is_number = isinstance(score, int | float) and math.isfinite(score)
    if score is not None and not is_number:
        raise TypeError(f"generate_response returned the score {score!r:.100}, wanted a finite number or None")
    return Reply(str(replace_surrogates(text)[0]), ends, None if score is None else float(score))
