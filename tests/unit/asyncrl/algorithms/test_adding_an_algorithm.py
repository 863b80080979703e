"""A new algorithm is one file, its line in the table, and one case: shown by adding one."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import asyncrl.algorithms
from asyncrl.algorithms import Algorithm
from asyncrl.config.trainer import ActorConfig, AlgorithmConfig
from tests.support.algorithm_promises import PROMISES, complete, split_changes_nothing
from tests.unit.asyncrl.algorithms.adapters import group_advantage
from tests.unit.asyncrl.algorithms.golden import compare, load_cases

FILE = '''"""Rank advantage: above the group's mean +1, below it -1, whatever the distance."""

from asyncrl.algorithms.advantages import row_scores, spread
from asyncrl.algorithms.base import Algorithm, alone
from asyncrl.algorithms.groups import Groups
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES


def signs(rewards, mask_BT, group_ids_B, *, total=alone):
    """The sign of reward minus the group's mean."""
    scores_B = row_scores(rewards)
    return spread(Groups(group_ids_B, scores_B).centre(scores_B, "zero").sign(), mask_BT)


ALGORITHM = Algorithm(
    name="signs",
    advantage=signs,
    correction=CORRECTIONS["tis"],
    loss=LOSSES["ppo_clip"].loss,
    source="this test, 2026",
)
'''

CASE = {
    "name": "signs_by_hand",
    "function": "adv.signs",
    "inputs": {
        "rewards": {"dtype": "float32", "shape": [3, 2], "data": [[0, 9], [1, 0], [0, 2]]},
        "mask": {"dtype": "float32", "shape": [3, 2], "data": [[1, 1], [1, 0], [1, 1]]},
        "group_ids": ["a", "a", "a"],
    },
    "params": {},
    "expected": {"advantages": {"dtype": "float32", "shape": [3, 2], "data": [[1, 1], [-1, 0], [-1, -1]]}},
    "tolerance": {"rtol": 0.0, "atol": 0.0},
    "compare_where": "mask",
}


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package's own table, in whose text the new algorithm has got its line as every other has."""
    (tmp_path / "signs.py").write_text(FILE)
    module = load("asyncrl.algorithms.signs", tmp_path / "signs.py")
    monkeypatch.setitem(sys.modules, "asyncrl.algorithms.signs", module)
    monkeypatch.setattr(asyncrl.algorithms, "signs", module, raising=False)
    text = Path(asyncrl.algorithms.__file__).read_text()
    for line in ("    rloo,\n", '        "rloo": rloo.ALGORITHM,\n'):
        assert text.count(line) == 1
        text = text.replace(line, line + line.replace("rloo", "signs"))
    (tmp_path / "table.py").write_text(text)
    return load("table_with_one_more", tmp_path / "table.py")


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_is_held_to_what_every_algorithm_promises(table: ModuleType, promise: Callable[[Algorithm], None]) -> None:
    promise(complete(table.ALGORITHMS["signs"]))


def test_no_split_changes_its_step(table: ModuleType) -> None:
    split = [[torch.tensor([0, 5]), torch.tensor([3])], [torch.tensor([7, 1, 2]), torch.tensor([4, 6])]]
    split_changes_nothing(complete(table.ALGORITHMS["signs"]), 0, split)


def test_a_golden_case_of_it_is_read_from_a_file_and_compared(table: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "signs.json").write_text(json.dumps({"schema": 1, "cases": [CASE]}))
    (case,) = load_cases(tmp_path)
    compare(case, group_advantage(table.ALGORITHMS["signs"].advantage)(case.inputs, case.params))
    wrong = group_advantage(table.ALGORITHMS["rloo"].advantage)(case.inputs, case.params)
    with pytest.raises(AssertionError, match="signs_by_hand: advantages is off"):
        compare(case, wrong)


def test_a_configuration_names_it_and_lends_its_estimator_to_another(table: ModuleType) -> None:
    by_name = table.resolve(AlgorithmConfig(name="signs", loss="cispo"), ActorConfig(clip_ratio_high=0.3))
    assert by_name.loss.keywords == {"low": 1.0, "high": 0.3}
    lent = table.resolve(AlgorithmConfig(name="gspo", adv_estimator="signs"), ActorConfig())
    assert lent.advantage is table.ALGORITHMS["signs"].advantage
    assert len(table.ALGORITHMS) == len(asyncrl.algorithms.ALGORITHMS) + 1
