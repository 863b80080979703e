"""The Lua scripts as the server gets them: shebang, names of the keys, the shared moves, the script itself."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from buffer.keys import LEDGER_KEYS

_KEYS, _INCLUDE = "-- KEYS: ", "-- INCLUDE: "


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

    Its first line is `#!lua` with its flags; `-- KEYS:` names what it touches, `-- INCLUDE:` files of lua/shared/.
    """
    shebang, _, body = _read(f"{name}.lua").partition("\n")
    lines = body.splitlines()
    keys = tuple(key for line in lines if line.startswith(_KEYS) for key in line.removeprefix(_KEYS).split())
    includes = [name for line in lines if line.startswith(_INCLUDE) for name in line.removeprefix(_INCLUDE).split()]
    if not (shebang.startswith("#!lua") and keys and set(keys) <= set(LEDGER_KEYS)):
        raise AssertionError(f"lua/{name}.lua has no shebang, or names no keys, or keys that no ledger has")
    names = ", ".join(f"{key} = KEYS[{i}]" for i, key in enumerate(keys, 1))
    bound = f"local K = {{ {names} }}"
    text = "\n".join([shebang, bound, *(_read("shared", f"{shared}.lua") for shared in ("books", *includes)), body])
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, keys, "no-writes" in shebang)


def _read(*path: str) -> str:
    return files("buffer").joinpath("lua", *path).read_text(encoding="utf-8")
