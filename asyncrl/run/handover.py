"""Hand the configuration to a child process through a file that only this user can read."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from asyncrl.config import Config


def write_config(config: Config, path: Path) -> Path:
    """Write `config` as JSON with its secrets, mode 0600, replacing what was there; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(revealed(config), file)
    partial.rename(path)
    return path


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
        return str(value)
    return value
