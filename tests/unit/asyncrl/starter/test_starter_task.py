"""Problems: right answers, disjoint files, the same for the same seed."""

import random

import pytest

from asyncrl.config.trainer import StarterTaskConfig
from asyncrl.errors import ConfigError
from asyncrl.starter import task

SORT = StarterTaskConfig(train_rows=300, val_rows=40, min_digits=2, max_digits=3)


def test_answers_of_sort_digits_are_the_sorted_digits():
    for problem in task.training(SORT, seed=3):
        assert problem.prompt.startswith("sort ")
        assert problem.answer == "".join(sorted(problem.prompt.removeprefix("sort ")))
        assert problem.answer in problem.decoys


def test_answers_of_arithmetic_are_the_sum():
    rng = random.Random(0)
    for digits in (1, 2, 3):
        for _ in range(50):
            problem = task.TASKS["arithmetic"].draw(rng, digits)
            one, other = problem.prompt.removesuffix("=").split("+")
            assert int(one) + int(other) == int(problem.answer)
            assert {len(one), len(other)} == {digits}


@pytest.mark.parametrize("name", list(task.TASKS))
def test_held_out_prompts_are_never_trained_on_and_none_comes_twice(name):
    config = SORT.model_copy(update={"name": name})
    held_out = [problem.prompt for problem in task.held_out(config, seed=1)]
    training = [problem.prompt for problem in task.training(config, seed=1)]
    assert (len(held_out), len(training)) == (40, 300)
    assert len({*held_out, *training}) == 340


def test_problems_depend_on_the_seed_alone():
    assert task.training(SORT, seed=5) == task.training(SORT, seed=5)
    assert task.training(SORT, seed=5) != task.training(SORT, seed=6)


def test_rows_have_the_columns_of_verl():
    row = task.rows(SORT, task.held_out(SORT, seed=0), "test")[3]
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert row["data_source"] == "sort_digits"
    assert row["extra_info"] == {"split": "test", "index": 3}


def test_too_few_different_prompts_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"110 different prompts .* need 111"):
        task.check(StarterTaskConfig(train_rows=100, val_rows=11, min_digits=1, max_digits=2))
    task.check(StarterTaskConfig(train_rows=100, val_rows=10, min_digits=1, max_digits=2))


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'sudoku' is not a task; choose one of sort_digits, arithmetic"):
        task.check(SORT.model_copy(update={"name": "sudoku"}))
