"""Files, overrides and the environment -> one checked Config, with where each key comes from.

YAML -> OmegaConf (overrides) -> JSON -> pydantic. In strict mode pydantic takes a list for a tuple and a string for a
Path from JSON, and converts nothing else.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import ValidationError

from asyncrl.config import Config
from asyncrl.load_config.files import Given, read_file
from asyncrl.load_config.keys import known_keys, shown
from asyncrl.load_config.overrides import SOURCE, parse
from asyncrl.load_config.problems import explain, refusal
from asyncrl.load_config.yaml_reader import Json, Problem
from asyncrl.load_config.yaml_writer import document as yaml_document

REDIS_URL_VARIABLE = "ASYNCRL_REDIS_URL"
SECRET_VARIABLES = {
    "buffer.url": REDIS_URL_VARIABLE,
    "weightsync.url": "ASYNCRL_WEIGHTSYNC_URL",
    "weightsync.key": "ASYNCRL_WEIGHTSYNC_KEY",
}
"""Key -> the variable that is its value where it is not set: a secret belongs into no file that is copied."""
"""Environment variable with the address of Redis, used when buffer.url is not set: it keeps a password out of files."""

OF_THE_MODE = {
    "staleness.limit": "limit",
    "schedule.shares_gpus": "shares_gpus",
    "schedule.steps_per_version": "steps_per_version",
    "schedule.lend_trainer_gpus": "lend_trainer_gpus",
}
"""Keys that are the mode's unless they are set, and the field of the mode's row."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and where it comes from.

    Attributes:
        config: the checked tree.
        origins: dotted key -> `configs/a.yaml line 3`, `override`, `environment NAME`, `mode row NAME` or `default`.
        resolved: the tree in JSON form with the mode's row filled in and secrets masked; it may be shown and logged.
    """

    config: Config
    origins: dict[str, str]
    resolved: dict[str, Any]  # Any: JSON has no narrower name


def load(path: Path | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a file and overrides of it (`rollout.n=8`).

    Raises:
        ConfigError: names every problem found, not the first one only: key, place, value, what is allowed, nearest key.
    """
    file = read_file(path) if path is not None else Given()
    given = parse(overrides)
    problems = [*file.problems, *given.problems]
    if not isinstance(file.value, dict):
        raise refusal(
            problems or [Problem("", str(path), f"holds {type(file.value).__name__}, not sections with keys")]
        )
    tree, places = _merged(file, given.values)
    _add_secrets(tree, places)
    seen = {problem.key for problem in problems}
    try:
        config = Config.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        found = explain(error, lambda key: _place(places, key))
        raise refusal(problems + [problem for problem in found if problem.key not in seen]) from None
    if problems:
        raise refusal(problems)
    return LoadedConfig(config, _origins(config, places), _resolved(config))


def to_yaml(loaded: LoadedConfig | Config) -> str:
    """The whole configuration as YAML that can be loaded again, each key with its origin; secrets stay masked."""
    if isinstance(loaded, Config):
        return yaml_document(_resolved(loaded), {})
    return yaml_document(loaded.resolved, loaded.origins)


def _merged(file: Given, overrides: Sequence[tuple[str, Json]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The file with the overrides in it, and the place where each key was set."""
    places = dict(file.places)
    # What asks for an interpolation was refused by the reader; OmegaConf must not try to parse it before we say so.
    tree = OmegaConf.create(_without_interpolations(file.value))
    for key, value in overrides:
        OmegaConf.update(tree, key, value, merge=True, force_add=True)
        places |= dict.fromkeys(_leaves(key, value), SOURCE)
    merged = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(merged, dict), "a mapping stays one"
    return {str(key): value for key, value in merged.items()}, places


def _without_interpolations(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_interpolations(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_interpolations(inner) for inner in value]
    return value.replace("${", "") if isinstance(value, str) else value


def _add_secrets(tree: dict[str, Any], places: dict[str, str]) -> None:
    """Fill secrets from the environment that are not set."""
    for key, variable in SECRET_VARIABLES.items():
        name, _, field = key.partition(".")
        section, value = tree.get(name, {}), os.environ.get(variable)
        if value and isinstance(section, dict) and section.get(field) is None:
            tree[name] = {**section, field: value}
            places[key] = f"environment {variable}"


def _leaves(key: str, value: Json) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key


def _place(places: Mapping[str, str], key: str) -> str:
    """Where a key was set, or the list or section that it is in."""
    while key:
        if key in places:
            return places[key]
        key = key.rpartition("[" if key.endswith("]") else ".")[0]
    return ""


def _origins(config: Config, places: Mapping[str, str]) -> dict[str, str]:
    """Where each key of the tree comes from."""
    origins = {}
    for key in known_keys():
        value = _value(config, key)
        if key in OF_THE_MODE and value is None:
            origins[key] = f"mode row {config.mode}"
        else:
            origins[key] = places.get(key) or _of_entries(places, key) or "default"
    return origins


def _of_entries(places: Mapping[str, str], key: str) -> str:
    """Where the first entry of a key that is a mapping was set."""
    return next((place for at, place in places.items() if at.startswith(f"{key}.")), "")


def _resolved(config: Config) -> dict[str, Any]:
    tree = shown(config)
    for key, name in OF_THE_MODE.items():
        section, _, field = key.rpartition(".")
        tree[section][field] = getattr(config.plan, name)
    return tree


def _value(config: Config, key: str) -> Any:  # Any: a key holds any type
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value
