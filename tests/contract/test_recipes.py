"""What every recipe promises: it is a complete run of the row that it is named after, and states what it reaches."""

from pathlib import Path

import pytest

from asyncrl.algorithms import ALGORITHMS, resolve
from asyncrl.config import Config
from asyncrl.load_config import load, to_yaml
from scripts.benches import recipes

ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted((ROOT / recipes.RECIPES).glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_redis_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCRL_REDIS_URL", raising=False)


def config_of(path: Path) -> Config:
    return load(path).config


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_a_row_by_its_name_or_says_which(path: Path) -> None:
    config = config_of(path)
    assert recipes.row(path.stem) in ALGORITHMS
    assert config.algorithm.name == recipes.row(path.stem)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_resolves(path: Path) -> None:
    config = config_of(path)
    algorithm = resolve(config.algorithm, config.actor, max_new_tokens=config.rollout.max_new_tokens)
    assert algorithm.name == recipes.row(path.stem)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_a_run_of_its_own_with_a_fixed_seed_that_is_evaluated(path: Path) -> None:
    config, whole = config_of(path), config_of(ROOT / "configs" / "tiny_cpu.yaml")
    assert config.run.name != whole.run.name
    assert config.run.seed == whole.run.seed
    assert config.starter is not None
    assert config.data.val_files


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_loads_again_from_what_it_resolves_to(path: Path, tmp_path: Path) -> None:
    loaded = load(path)
    (tmp_path / "whole.yaml").write_text(to_yaml(loaded))
    again = load(tmp_path / "whole.yaml").config
    assert again.plan == loaded.config.plan
    assert again.algorithm == loaded.config.algorithm


def test_recipes_have_different_names() -> None:
    names = [config_of(path).run.name for path in PATHS]
    assert sorted(set(names)) == sorted(names)


def test_a_target_is_a_rows_and_what_is_not_named_after_a_row_is_a_recipe() -> None:
    assert ALGORITHMS.keys() >= recipes.TARGETS.keys() - recipes.ROWS.keys()
    assert {path.stem for path in PATHS} >= recipes.ROWS.keys()
    assert all(0 < recipes.target(name) <= 1 for name in ALGORITHMS)
