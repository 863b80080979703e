"""YAML, dotted overrides and environment -> Config; unknown keys and wrong values are errors that say what to do."""

from asyncrl.load_config.foreign_keys import FOREIGN_KEYS
from asyncrl.load_config.keys import Key, describe
from asyncrl.load_config.loader import REDIS_URL_VARIABLE, SECRET_VARIABLES, LoadedConfig, load, to_yaml

__all__ = [
    "FOREIGN_KEYS",
    "REDIS_URL_VARIABLE",
    "SECRET_VARIABLES",
    "Key",
    "LoadedConfig",
    "describe",
    "load",
    "to_yaml",
]
