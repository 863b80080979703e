"""A file that names a base says only what it changes; where it stands, and what cannot be a base, is said by name."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.load_config import load

BASE = """\
run: {name: whole}
rollout:
  n: 4
  slots: 7
starter: {seed: 3}
data: {train_files: [a.parquet, b.parquet]}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ASYNCRL_REDIS_URL", raising=False)
    (tmp_path / "whole.yaml").write_text(BASE)
    (tmp_path / "recipes").mkdir()
    return tmp_path / "recipes" / "varied.yaml"


def refused(recipe: Path, text: str) -> str:
    recipe.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(recipe)
    return str(caught.value)


def test_a_key_of_the_file_wins_and_its_neighbours_stay_the_bases(recipe: Path) -> None:
    recipe.write_text("base: ../whole.yaml\nrun: {name: varied}\nrollout: {n: 16}\n")
    config = load(recipe).config
    assert (config.run.name, config.rollout.n, config.rollout.slots) == ("varied", 16, 7)


def test_an_override_wins_over_both(recipe: Path) -> None:
    recipe.write_text("base: ../whole.yaml\nrollout: {n: 16}\n")
    config = load(recipe, ["rollout.n=2", "rollout.slots=3"]).config
    assert (config.rollout.n, config.rollout.slots) == (2, 3)


def test_a_list_and_a_null_replace_what_the_base_has(recipe: Path) -> None:
    recipe.write_text("base: ../whole.yaml\nstarter: null\ndata: {train_files: [c.parquet]}\n")
    config = load(recipe).config
    assert (config.starter, config.data.train_files) == (None, (Path("c.parquet"),))


def test_a_file_that_only_names_a_base_is_that_run(recipe: Path) -> None:
    recipe.write_text("base: ../whole.yaml\n")
    assert load(recipe).config == load(recipe.parent.parent / "whole.yaml").config


def test_each_key_says_in_which_of_the_two_files_it_stands(recipe: Path) -> None:
    recipe.write_text("base: ../whole.yaml\nstarter: null\nrollout:\n  n: 16\n")
    origins = load(recipe).origins
    whole = recipe.parent.parent / "whole.yaml"
    assert origins["rollout.n"] == f"{recipe} line 4"
    assert origins["rollout.slots"] == f"{whole} line 4"
    assert "starter.seed" not in origins or str(whole) not in origins["starter.seed"]


def test_a_wrong_value_of_the_base_is_refused_at_its_place_there(recipe: Path) -> None:
    (recipe.parent.parent / "whole.yaml").write_text("rollout: {n: many}\n")
    text = refused(recipe, "base: ../whole.yaml\n")
    assert "rollout.n" in text
    assert f"{recipe.parent.parent / 'whole.yaml'} line 1" in text


def test_the_path_is_read_from_the_directory_of_the_file_that_names_it(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe.write_text("base: ../whole.yaml\n")
    monkeypatch.chdir(recipe.parent.parent)
    assert load(Path("recipes/varied.yaml")).origins["rollout.n"] == "whole.yaml line 3"


def test_a_missing_base_is_answered_with_who_named_it_and_its_neighbours(recipe: Path) -> None:
    text = refused(recipe, "run: {name: x}\nbase: ../whale.yaml\n")
    assert f"base ({recipe} line 2)" in text
    assert "did you mean" in text
    assert "whole.yaml" in text


@pytest.mark.parametrize("named", ["[a.yaml]", "null", "7", "''", "{file: a.yaml}"])
def test_a_base_that_is_no_path_is_refused(recipe: Path, named: str) -> None:
    text = refused(recipe, f"base: {named}\n")
    assert text.startswith(f"base ({recipe} line 1): must be the path of a configuration file")


@pytest.mark.parametrize("named", ["middle.yaml", "varied.yaml"])
def test_a_base_of_a_base_is_refused_so_that_no_chain_can_close(recipe: Path, named: str) -> None:
    (recipe.parent / "middle.yaml").write_text("base: ../whole.yaml\n")
    text = refused(recipe, f"base: {named}\n")
    assert f"base ({recipe} line 1): a base has no base of its own" in text
    assert f"{recipe.parent / named} line 1" in text


def test_a_base_that_holds_no_sections_is_refused(recipe: Path) -> None:
    (recipe.parent.parent / "whole.yaml").write_text("- a\n- b\n")
    assert "the base holds list, not sections with keys" in refused(recipe, "base: ../whole.yaml\n")


def test_problems_of_both_files_are_reported_at_once(recipe: Path) -> None:
    (recipe.parent.parent / "whole.yaml").write_text("rollout: {n: many}\n")
    text = refused(recipe, "base: ../whole.yaml\nactor: {lr: fast}\n")
    assert "rollout.n" in text
    assert "actor.lr" in text


def test_base_is_no_key_of_an_override(recipe: Path) -> None:
    recipe.write_text("")
    with pytest.raises(ConfigError, match="base"):
        load(recipe, ["base=../whole.yaml"])
