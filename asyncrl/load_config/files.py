"""A configuration file as plain values with the place of every key; `base:` names a file that it varies.

A recipe says what it changes of a complete run, and names that run. One level only: whoever reads a configuration opens
two files at most, and nothing can name itself.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.load_config.yaml_reader import Document, Json, Problem, read

BASE = "base"
"""Key of a file, not of the tree: the path of the base, from the directory of the file that names it."""


@dataclass(frozen=True)
class Given:
    """What a file says, its base included.

    Attributes:
        value: a mapping, or whatever else the file holds.
        places: dotted key -> `configs/a.yaml line 3`.
        problems: what was refused; `value` is not to be used if there are any.
    """

    value: Json = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def read_file(path: Path) -> Given:
    """Read a file and the one that it names as its base: its own keys win, section by section.

    Raises:
        ConfigError: one of the two is missing or cannot be read; the message names it, and who named it.
    """
    own = _document(path)
    given = _given(own, path)
    if not isinstance(own.value, dict) or BASE not in own.value:
        return given
    where = given.places[BASE]
    problem = Problem(BASE, where, "must be the path of a configuration file, from the directory of this one")
    named = own.value.pop(BASE)
    if not isinstance(named, str) or not named:
        return Given(own.value, given.places, (*given.problems, problem))
    place = Path(os.path.normpath(path.parent / named))
    try:
        base = _document(place)
    except ConfigError as error:
        raise ConfigError(f"{BASE} ({where}): {error}") from None
    return _varied(_given(base, place), given, where)


def _varied(base: Given, own: Given, where: str) -> Given:
    """The base with the file's own keys in it."""
    problems = (*base.problems, *own.problems)
    if not isinstance(base.value, dict):
        text = f"the base holds {type(base.value).__name__}, not sections with keys"
        return Given(own.value, own.places, (*problems, Problem(BASE, where, text)))
    if BASE in base.value:
        text = (
            f"a base has no base of its own, and this one has ({base.places[BASE]}): a run would stand in three files. "
            "Name the complete file, and repeat here what the one between them changes."
        )
        return Given(own.value, own.places, (*problems, Problem(BASE, where, text)))
    assert isinstance(own.value, dict)
    places = {key: place for key, place in own.places.items() if key != BASE}
    kept = {key: place for key, place in base.places.items() if not _replaced(key, own.value)}
    return Given(_merged(base.value, own.value), kept | places, problems)


def _merged(base: dict[str, Json], own: Mapping[str, Json]) -> dict[str, Json]:
    merged = dict(base)
    for key, value in own.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _replaced(key: str, own: Json) -> bool:
    """Whether a key of the base is one of the file's own, or lies within one that is no section there."""
    for name in key.split("."):
        if not isinstance(own, dict):
            return True
        if name not in own:
            # A mapping in a list has the list's key and an index.
            return name.partition("[")[0] in own
        own = own[name]
    return not isinstance(own, dict)


def _given(document: Document, path: Path) -> Given:
    places = {key: f"{path} line {line}" for key, line in document.lines.items()}
    return Given(document.value, places, tuple(document.problems))


def _document(path: Path) -> Document:
    """The YAML of a file; an empty one has no keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file{_nearest_file(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory; name a YAML file in it{_nearest_file(path / 'x.yaml')}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}; is this a YAML file?") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    document = read(text, str(path))
    if document.value is None and not document.problems:
        document.value = {}
    return document


def _nearest_file(path: Path) -> str:
    """` (did you mean ...?)`, if files stand where it was looked for."""
    if not path.parent.is_dir():
        return f" (there is no directory {path.parent} either)"
    files = sorted(file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml"))
    near = difflib.get_close_matches(path.name, files, n=1, cutoff=0.5) or files[:3]
    return f" (did you mean {' or '.join(str(path.parent / name) for name in near)}?)" if near else ""
