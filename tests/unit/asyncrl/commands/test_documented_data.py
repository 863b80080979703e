"""docs/data.md and docs/rewards.md: their command lines and their configurations are ones that are taken."""

import argparse
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl import cli
from asyncrl.commands.data import ACTIONS
from asyncrl.config.data import DataConfig
from asyncrl.config.reward import RewardConfig
from asyncrl.data.converters import CONVERTERS
from tests.unit.asyncrl.commands.test_documented_commands import module_of

DOCS = Path(__file__).resolve().parents[4] / "docs"
DATA, REWARDS = (DOCS / "data.md").read_text(), (DOCS / "rewards.md").read_text()
LINES = re.findall(r"^asyncrl (.+)$", DATA, re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_a_documented_line_is_taken_by_its_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[argparse.Namespace] = []
    monkeypatch.setattr(importlib.import_module(module_of(line.split())), "run", lambda args: taken.append(args) or 0)
    assert cli.main(line.split()) == 0
    assert len(taken) == 1


def test_every_action_and_every_data_set_is_shown() -> None:
    assert {line.split()[1] for line in LINES if line.startswith("data ")} == set(ACTIONS)
    assert all(f"`{name}`" in DATA for name in CONVERTERS)


def configurations(page: str) -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.+?)```", page, re.DOTALL)]


@pytest.mark.parametrize("tree", configurations(DATA), ids=lambda tree: "-".join(tree["data"]))
def test_a_documented_data_section_is_taken(tree: dict[str, Any]) -> None:
    DataConfig.model_validate(tree["data"], strict=False)


@pytest.mark.parametrize("tree", configurations(REWARDS), ids=lambda tree: "-".join(tree["rollout"]["reward"]))
def test_a_documented_reward_section_is_taken(tree: dict[str, Any]) -> None:
    RewardConfig.model_validate(tree["rollout"]["reward"], strict=False)
