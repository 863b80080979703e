"""A user's own code, named by a configuration key as path/to/file.py:name or package.module:name."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from asyncrl.envs.rewards.failure import described
from asyncrl.errors import ConfigError


def load_named(key: str, name: str) -> object:
    """What the file or module has under that name. A file is run once, however many names it is asked for.

    Args:
        key: the configuration key, for the message.
        name: path.py:name, a relative path being looked for from the working directory; or package.module:name.
    Raises:
        ConfigError: no such file or module, it fails to load, or it has no such name.
    """
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        raise ConfigError(f"{key} = {name!r} names no code. Write path/to/file.py:name or package.module:name.")
    module = _from_file(key, Path(place)) if place.endswith(".py") else _from_path(key, place)
    if not hasattr(module, attribute):
        offered = ", ".join(sorted(public for public in vars(module) if not public.startswith("_"))[:20]) or "nothing"
        raise ConfigError(f"{key} = {name!r}: {place} has no {attribute!r}. It has {offered}.")
    found: object = getattr(module, attribute)
    return found


def _from_file(key: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(
            f"{key}: there is no file {path}, looked for from {Path.cwd()}. The machines of serve-rollout need it."
        )
    path = path.resolve()
    name = f"asyncrl_user_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the file look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # SystemExit too: whatever the file does, the answer is one clear message
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ConfigError(f"{key}: {path} cannot be loaded: {described(error, within=path)}") from error
    return module


def _from_path(key: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is anybody's code: SystemExit too
        raise ConfigError(
            f"{key}: {module} cannot be imported: {described(error)}. It must be installed, or on the path "
            "(PYTHONPATH), where serve-rollout runs; a file of its own is named as path/to/file.py:name."
        ) from error
