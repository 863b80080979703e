"""The Lua scripts as texts: flags, declared keys, and no key or policy hidden in one."""

import re
from importlib.resources import files

import pytest

from buffer.keys import AUDIT_KEYS, HASHES, LEDGER_KEYS, SETS
from buffer.scripts import script

LUA = files("buffer").joinpath("lua")
SCRIPTS = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))
SHARED = sorted(path.name.removesuffix(".lua") for path in LUA.joinpath("shared").iterdir())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_declares_the_keys_that_it_names(name: str) -> None:
    one = script(name)
    own = one.text.rpartition("-- KEYS:")[2]
    named = set(re.findall(r"\bK\.(\w+)", own)) - {"run"}
    assert named <= set(one.keys)
    assert set(one.keys) <= set(LEDGER_KEYS)
    assert one.keys[0] == "run", "the shared moves read it before anything else"


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_what_adds_to_memory_may_be_refused_by_a_full_server(name: str) -> None:
    shebang = script(name).text.splitlines()[0]
    flags = "" if name in ("reserve", "put", "park", "report") else " flags=allow-oom"
    assert shebang == "#!lua" + (" flags=no-writes" if script(name).only_reads else flags)
    assert script(name).only_reads == (name in ("types", "lineage", "counts", "named"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_builds_a_key_or_touches_a_payload(name: str) -> None:
    text = script(name).text
    assert "payload:" not in text
    assert not re.search(r'redis\.p?call\("(?!INFO)\w+", "', text), "a key written in a script"
    assert not re.search(r'"(KEYS|SCAN|FLUSH\w+)"', text)


def test_every_shared_file_is_used() -> None:
    assert SHARED == ["books", "closing", "moves", "tokens"]
    assert all(
        any(f"-- INCLUDE: {use}" in script(name).text for name in SCRIPTS)
        for use in ("tokens moves", "tokens moves closing")
    )


def test_the_books_are_read_whole() -> None:
    assert script("types").keys == LEDGER_KEYS
    assert set(LEDGER_KEYS) - set(AUDIT_KEYS) == {"hints", "reports"}
    lua = dict(re.findall(r'(\w+) = "(hash|set)"', script("types").text))
    assert {name for name, kind in lua.items() if kind == "hash"} == set(HASHES)
    assert {name for name, kind in lua.items() if kind == "set"} == set(SETS)
    assert script("drop").keys == LEDGER_KEYS, "nothing of a dropped run stays"
