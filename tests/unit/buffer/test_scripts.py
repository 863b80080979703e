"""The Lua scripts as texts: flags, declared keys, and no key or policy hidden in one."""

import re
from importlib.resources import files

import pytest

from buffer.keys import AUDIT_KEYS, HASHES, LEDGER_KEYS, SETS
from buffer.scripts import definitions, names_in, script

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
    assert script(name).only_reads == (name in ("types", "lineage", "counts", "named", "pass_rates"))


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


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_names_of_the_shared_moves_stands_above_it(name: str) -> None:
    known = set[str]()
    for file in SHARED:
        for names, _ in definitions(file):
            known |= names
    above = set[str]()
    for line in script(name).text.splitlines():
        if match := re.match(r"local (?:function )?(\w+(?:, \w+)*)", line):
            above |= set(match[1].split(", "))
        code = re.sub(r'"[^"]*"|[{,] *\w+ =', "", line.partition("--")[0])  # no strings, no fields of tables
        assert names_in(code) & known <= above, line


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_carries_no_shared_move_that_nothing_in_it_names(name: str) -> None:
    text = script(name).text
    for file in SHARED:
        for names, part in definitions(file):
            assert part not in text or names & names_in(text.replace(part, "")), f"{name} does not need {names}"


def test_the_shared_files_are_cut_where_their_definitions_begin() -> None:
    for file in SHARED:
        lines = LUA.joinpath("shared", f"{file}.lua").read_text().splitlines()
        code = [kept for line in lines if (kept := line.partition("--")[0]).strip()]
        assert [line for _, part in definitions(file) for line in part.splitlines()] == code
    assert {"spend", "close", "exempt", "kind_of", "run"} <= {
        n for f in SHARED for names, _ in definitions(f) for n in names
    }


def test_every_shared_move_is_used_by_a_script() -> None:
    texts = [script(name).text for name in SCRIPTS]
    assert all(any(part in text for text in texts) for file in SHARED for _, part in definitions(file))


def test_a_script_that_moves_no_group_makes_no_moves() -> None:
    made = set(re.findall(r"^local (?:function )?(\w+)", script("advance").text, re.MULTILINE))
    assert made == {"K", "NUMBERS", "run", "set_run", "hint", "fence", "move_to", "status"}


def test_the_books_are_read_whole() -> None:
    assert script("types").keys == LEDGER_KEYS
    assert set(LEDGER_KEYS) - set(AUDIT_KEYS) == {"hints", "reports"}
    lua = dict(re.findall(r'(\w+) = "(hash|set)"', script("types").text))
    assert {name for name, kind in lua.items() if kind == "hash"} == set(HASHES)
    assert {name for name, kind in lua.items() if kind == "set"} == set(SETS)
    assert script("drop").keys == LEDGER_KEYS, "nothing of a dropped run stays"
