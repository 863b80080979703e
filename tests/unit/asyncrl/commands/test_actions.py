"""Families of commands: every action explains itself, and what is not one is answered with those that are."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

from asyncrl import cli
from asyncrl.commands import tables


def families(name: str, package: str = "asyncrl.commands") -> Iterator[tuple[str, str]]:
    """(words, module) of a command, or of every action of it."""
    module = f"{package}.{cli.module_of(name.split()[-1])}"
    actions = getattr(importlib.import_module(module), "ACTIONS", None)
    if actions is None:
        yield name, module
    for action in actions or ():
        yield from families(f"{name} {action}", module)


ACTIONS = [*families("buffer"), *families("fleet"), *families("tools")]


@pytest.mark.parametrize(("words", "module"), ACTIONS, ids=[words for words, _ in ACTIONS])
def test_every_action_explains_itself(words: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([*words.split(), "--help"])
    assert left.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"usage: asyncrl {words}" in shown
    doc = importlib.import_module(module).__doc__
    assert doc is not None
    assert " ".join(doc.split(".")[0].split()) in shown


@pytest.mark.parametrize(
    ("name", "helpers"), [("buffer", {"text", "dead_letters"}), ("fleet", {"subject"}), ("tools", set())]
)
def test_every_file_of_a_family_is_an_action_or_is_used_by_one(name: str, helpers: set[str]) -> None:
    family = importlib.import_module(f"asyncrl.commands.{name}")
    files = {info.name for info in pkgutil.iter_modules(family.__path__)}
    assert files - helpers == {cli.module_of(action) for action in family.ACTIONS} - helpers


def test_a_family_without_an_action_is_a_usage_error_that_shows_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["buffer"])
    assert left.value.code == 2
    with pytest.raises(SystemExit) as left:
        cli.main(["buffer", "--help"])
    assert left.value.code == 0
    assert "dead-letters  list, show, resubmit or purge" in capsys.readouterr().out


def test_a_word_of_the_language_is_a_command_all_the_same() -> None:
    assert cli.module_of("import") == "import_"
    assert cli.module_of("dead-letters") == "dead_letters"


def test_tables_fold_only_their_last_column_and_numbers_have_units() -> None:
    assert tables.facts([("a", "1"), ("longer", "[not markup]")]) == "a       1\nlonger  [not markup]"
    assert tables.facts([("error", "\x1b[2Jcleared \r\x07 caf\u00e9")]) == "error  \\x1b[2Jcleared \\r\\x07 caf\u00e9"
    assert tables.num_bytes(1023) == "1023 B"
    assert tables.num_bytes(3 << 20) == "3.0 MiB"
    assert tables.span_of_time(119) == "119 s"
    assert tables.span_of_time(7200) == "2.0 h"
    assert tables.one_line("a\n b" * 200, 12) == "a ba ba b..."
