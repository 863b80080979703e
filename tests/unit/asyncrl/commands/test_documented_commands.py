"""Every command line in docs/buffer.md and docs/checkpoints.md is one that its command takes, and the tables of the
first name what there is."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.commands.buffer.status import WHY_CLOSED
from asyncrl.data.group_schema import COLUMNS

DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGE = (DOCS / "buffer.md").read_text()
LINES = re.findall(r"^asyncrl (.+)$", PAGE + (DOCS / "checkpoints.md").read_text(), re.MULTILINE)


def module_of(words: list[str]) -> str:
    """The module that the first words of a line name."""
    module = f"asyncrl.commands.{cli.module_of(words[0])}"
    actions = getattr(importlib.import_module(module), "ACTIONS", None)
    depth = 1
    while actions is not None:
        module = f"{module}.{cli.module_of(words[depth])}"
        actions = getattr(importlib.import_module(module), "ACTIONS", None)
        depth += 1
    return module


@pytest.mark.parametrize("line", LINES)
def test_a_documented_line_is_taken_by_its_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[argparse.Namespace] = []
    module = importlib.import_module(module_of(line.split()))
    monkeypatch.setattr(module, "run", lambda args: taken.append(args) or 0)
    assert cli.main(line.split()) == 0
    (args,) = taken
    assert (str(args.config), args.overrides) == ("configs/tiny_cpu.yaml", [])


def test_the_page_names_every_action() -> None:
    from asyncrl.commands.buffer import ACTIONS

    shown = {line.split()[1] for line in LINES if line.startswith("buffer ")}
    assert shown == set(ACTIONS)


def test_the_page_names_every_reason_and_every_column() -> None:
    section = PAGE.partition("| admission is closed |")[2]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)[: len(WHY_CLOSED)] == list(WHY_CLOSED)
    columns = PAGE.partition("| column | |")[2].partition("\n\n")[0]
    first_cells = re.findall(r"^\| (`.+?`) \|", columns, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == set(COLUMNS.names)
