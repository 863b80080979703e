"""The Lua scripts as the server gets them: shebang, names of the keys, shared moves, the script itself.

Redis keeps no Lua state between scripts: every call makes the closures and tables again that its text has. So a script
carries those of lua/shared/ that it reaches, and no others.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from buffer.keys import LEDGER_KEYS

_KEYS, _INCLUDE = "-- KEYS: ", "-- INCLUDE: "
_DEFINITION = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")
_COMMENT = re.compile(r"--.*")
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")  # not the field of a table


@dataclass(frozen=True, slots=True)
class Script:
    """One transition. `keys` names what it touches; its KEYS are these, in this order. `only_reads`: by its flags; a
    user without the right to write may run it, and a full server too."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    only_reads: bool


@cache
def script(name: str) -> Script:
    """Read and compose lua/<name>.lua.

    Its first line is `#!lua` with its flags; `-- KEYS:` names what it touches, `-- INCLUDE:` files of lua/shared/, of
    which it gets what it reaches.
    """
    shebang, _, body = _read(f"{name}.lua").partition("\n")
    lines = body.splitlines()
    keys = tuple(key for line in lines if line.startswith(_KEYS) for key in line.removeprefix(_KEYS).split())
    includes = [name for line in lines if line.startswith(_INCLUDE) for name in line.removeprefix(_INCLUDE).split()]
    if not (shebang.startswith("#!lua") and keys and set(keys) <= set(LEDGER_KEYS)):
        raise AssertionError(f"lua/{name}.lua has no shebang, or names no keys, or keys that no ledger has")
    names = ", ".join(f"{key} = KEYS[{i}]" for i, key in enumerate(keys, 1))
    bound = f"local K = {{ {names} }}"
    shared = [part for file in ("books", *includes) for part in definitions(file)]
    text = "\n".join([shebang, bound, *_reached(shared, body), body])
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, keys, "no-writes" in shebang)


@cache
def definitions(file: str) -> tuple[tuple[frozenset[str], str], ...]:
    """The names and the text of each definition of lua/shared/<file>.lua, in their order.

    One begins with a `local` at the margin and ends before the next. What stands between is a part of it: it fills in
    what was defined, and does nothing else.
    """
    parts: list[tuple[frozenset[str], str]] = []
    for line in _code(_read("shared", f"{file}.lua")).splitlines():
        if match := _DEFINITION.match(line):
            parts.append((frozenset(match[1].split(", ")), line))
        elif line.strip():
            names, text = parts[-1]
            parts[-1] = (names, f"{text}\n{line}")
    return tuple(parts)


def _reached(shared: Sequence[tuple[frozenset[str], str]], body: str) -> list[str]:
    """Of the definitions, those that the body names, or one of these: a definition names earlier ones only."""
    wanted, reached = names_in(body), list[str]()
    for names, text in reversed(shared):
        if names & wanted:
            wanted |= names_in(text)
            reached.insert(0, text)
    return reached


def names_in(text: str) -> set[str]:
    """All names in a text of Lua, keywords and words in strings included: too many do no harm."""
    return set(_NAME.findall(_code(text)))


def _code(text: str) -> str:
    return _COMMENT.sub("", text)


def _read(*path: str) -> str:
    return files("buffer").joinpath("lua", *path).read_text(encoding="utf-8")
