"""Hand the configuration to a child process through a file that only this user can read."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from asyncrl.config import Config


def write_config(config: Config, path: Path) -> Path:
    """Write `config` as JSON with its secrets, mode 0600, replacing what was there; returns `path`. Its own paths are
    absolute, so that a child finds the same files from another directory."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(_with_folders(revealed(config)), file)
    partial.rename(path)
    return path


def _with_folders(tree: dict[str, Any]) -> dict[str, Any]:
    """With paths absolute too that are texts, since what is there may be something else: weightsync's folders a URL,
    and code of one's own a module."""
    section = tree["weightsync"]
    for key in ("directory", "stage_dir"):
        if section[key] is not None and "://" not in section[key]:
            section[key] = str(Path(section[key]).absolute())
    rollout = tree["rollout"]
    rollout["environment"] = _with_file(rollout["environment"])
    rollout["tools"]["functions"] = [_with_file(name) for name in rollout["tools"]["functions"]]
    return tree


def _with_file(name: str) -> str:
    """path/to/file.py:name with its path absolute; any other name as it is."""
    path, separator, attribute = name.rpartition(":")
    return f"{Path(path).absolute()}{separator}{attribute}" if path.endswith(".py") else name


def read_config(path: Path) -> Config:
    """Read what write_config wrote."""
    return Config.model_validate_json(path.read_text())


def revealed(value: Any) -> Any:  # Any: JSON has no narrower name
    """The JSON form of a section, secrets in clear text."""
    if isinstance(value, BaseModel):
        return {name: revealed(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple | list):
        return [revealed(item) for item in value]
    if isinstance(value, Path):
        return str(value.absolute())  # the child may be started elsewhere
    return value
