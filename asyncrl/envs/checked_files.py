"""Files in other systems' forms, read and checked: what is wrong with them is listed by line and field."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from asyncrl.errors import ConfigError
from asyncrl.load_config.yaml_reader import read

M = TypeVar("M", bound=BaseModel)
MAX_SHOWN = 8


def read_yaml(path: Path, key: str, model: type[M]) -> M:
    """The content of a YAML file.

    Args:
        key: that names the file, for the message.
        model: what it must be.
    Raises:
        ConfigError: no such file, no YAML, or a field is not as it must be: names file, line and field.
    """
    document = read(text_of(path, key), str(path))
    if document.problems:
        raise _refusal([f"{p.where}{f', {p.key}' if p.key else ''}: {p.text}" for p in document.problems])
    return checked(model, document.value, lambda field: f"{path} line {_line(document.lines, field)}, {field}")


def text_of(path: Path, key: str) -> str:
    """The text of a file. Raises ConfigError: see read_yaml."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{key} = {path} cannot be read: {error.strerror} (looked for from {Path.cwd()}).") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {path} is not text: {error}.") from None


def checked(model: type[M], value: object, where: Callable[[str], str]) -> M:
    """The value as the model has it.

    Args:
        where: what to say of a field's place, by its dotted name.
    Raises:
        ConfigError: lists the fields that are not as they must be.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        lines = []
        for found in error.errors(include_url=False, include_context=False):
            key = _dotted(found["loc"])
            text = "is not known here" if found["type"] == "extra_forbidden" else found["msg"]
            lines.append(f"{where(key) if key else where('the file')}: {text}")
        raise _refusal(lines) from None


def _refusal(lines: list[str]) -> ConfigError:
    more = [f"and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return ConfigError("\n  ".join([*lines[:MAX_SHOWN], *more]))


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _line(lines: Mapping[str, int], key: str) -> int:
    """The line of a key, or of the nearest one around it; list items have none of their own."""
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return lines.get(key, 1)
