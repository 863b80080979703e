"""Your own environment, by file or by module: found, or refused with what is wrong with it before anything runs."""

from pathlib import Path

import pytest

from asyncrl.config import Config
from asyncrl.envs import ENVIRONMENTS
from asyncrl.envs.lookup import find_environment, scores_itself
from asyncrl.envs.user_code import load_named
from asyncrl.errors import ConfigError

GOOD = """
from asyncrl.envs import Reward, StepResult

LOADED = []
LOADED.append(1)
NUMBER = 3

class Echo:
    def __init__(self, deps):
        self.deps = deps

    async def reset(self, row, *, seed):
        return row.messages

    async def step(self, text, finish_reason):
        return StepResult(done=True, reward=Reward(1.0))

class Sync(Echo):
    def step(self, text, finish_reason):
        return StepResult(done=True, reward=Reward(1.0))

class Other(Echo):
    async def step(self, text):
        return StepResult(done=True, reward=Reward(1.0))

class NoReset:
    def __init__(self, deps): ...
    async def step(self, text, finish_reason): ...

class Two(Echo):
    def __init__(self, deps, more): ...

def make(deps):
    return Echo(deps)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_environment.py"
    path.write_text(GOOD)
    return path


def test_rows_of_the_table_are_found_by_name() -> None:
    assert all(find_environment(name) is ENVIRONMENTS[name] for name in ENVIRONMENTS)


def test_a_class_and_a_function_of_a_file_are_found(file: Path) -> None:
    assert getattr(find_environment(f"{file}:Echo"), "__name__", "") == "Echo"
    assert getattr(find_environment(f"{file}:make"), "__name__", "") == "make"


def test_a_file_is_run_once_whatever_is_asked_of_it(file: Path) -> None:
    find_environment(f"{file}:Echo")
    find_environment(f"{file}:make")
    assert load_named("key", f"{file}:LOADED") == [1]


def test_a_relative_path_is_looked_for_from_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert find_environment("own_environment.py:Echo")


def test_a_module_on_the_path_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    assert find_environment("own_environment:Echo")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "choose one of single_turn, .*path/to/file.py:Class"),
        (":Echo", "names no code"),
        ("{file}:", "names no code"),
        ("{folder}/absent.py:Echo", "there is no file .*absent.py, looked for from /"),
        ("{folder}:Echo", "cannot be imported"),
        ("no.such.module:Echo", "No module named 'no'.*PYTHONPATH"),
        ("{file}:Ekko", "has no 'Ekko'. It has Echo, LOADED, NUMBER, .*make"),
        ("{file}:NUMBER", "is a int, wanted a class"),
        ("{file}:Two", "cannot be called with one argument, the EnvironmentDeps"),
        ("{file}:Sync", r"must write as async def its method step\(self, text, finish_reason\)"),
        ("{file}:NoReset", r"has no method reset\(self, row, \*, seed\)"),
        ("{file}:Other", r"step must take \(self, text, finish_reason\): too many positional"),
    ],
)
def test_what_makes_no_environment_is_refused_with_the_reason(file: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)rollout.environment.*{says}"):
        find_environment(name.format(file=file, folder=file.parent))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import json\njson.loads('{')\n", r"JSONDecodeError: .*\(broken.py:2, in <module>\)"),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(broken.py:2, in <module>\)"),
        ("x = 1 / 0\n", r"ZeroDivisionError: division by zero \(broken.py:1"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_a_file_that_fails_to_load_says_where_and_is_run_again_once_mended(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"rollout.environment: .*broken.py cannot be loaded: {says}"):
        find_environment(f"{path}:Echo")
    path.write_text(GOOD)
    assert find_environment(f"{path}:Echo")


def test_who_scores_is_known_of_the_table_and_not_asked_of_your_own_code(file: Path) -> None:
    assert scores_itself("single_turn") is False
    assert scores_itself("text_game") is True
    assert scores_itself(f"{file}:Echo") is None
    assert scores_itself("no.such.module:Echo") is None, "the trainer's machine need not have it"


def test_the_default_environment_is_in_the_table() -> None:
    assert Config.model_fields["rollout"].default.environment in ENVIRONMENTS
