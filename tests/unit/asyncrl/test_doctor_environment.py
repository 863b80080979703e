"""The doctor asks the environment, whoever wrote it, and what it says is a finding like any other."""

from pathlib import Path

import pytest

from asyncrl.config import Config
from asyncrl.doctor.environments import check_environment
from asyncrl.doctor.finding import Finding
from asyncrl.load_config import load

OWN = """
class Own:
    def __init__(self, deps): ...
    async def reset(self, row, *, seed): ...
    async def step(self, text, finish_reason): ...

class Checked(Own):
    @classmethod
    async def check(cls, config):
        if config.max_turns > 3:
            raise OSError("the room is too small")
        return "the room is open"
"""


def only(*overrides: str) -> Finding:
    config: Config = load(None, overrides).config
    (found,) = check_environment(config)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_room.py"
    path.write_text(OWN)
    return path


def test_an_environment_of_the_table_and_one_of_your_own_are_there(file: Path) -> None:
    assert only() == Finding("environment", True, "single_turn")
    assert only(f"rollout.environment={file}:Own").ok
    assert only(f"rollout.environment={file}:Checked").detail == f"{file}:Checked: the room is open"


def test_what_is_not_there_and_what_it_finds_wrong_itself_fail(file: Path) -> None:
    absent = only("rollout.environment=games/absent.py:Room")
    assert (absent.ok, "there is no file games/absent.py" in absent.detail) == (False, True)
    small = only(f"rollout.environment={file}:Checked", "rollout.max_turns=4")
    assert (small.ok, "the room is too small" in small.detail) == (False, True)


def test_the_environments_from_elsewhere_say_what_they_miss() -> None:
    no_program = only("rollout.environment=harbor", "rollout.harbor.program=/absent/docker")
    assert (no_program.ok, "/absent/docker cannot be started" in no_program.detail) == (False, True)
    no_name = only("rollout.environment=verifiers")
    assert (no_name.ok, "rollout.verifiers.environment is not set" in no_name.detail) == (False, True)
