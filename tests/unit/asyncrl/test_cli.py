"""The command line: a table of commands, one message per error, exit codes."""

import importlib
import subprocess
import sys

import pytest

from asyncrl import cli
from asyncrl.errors import AsyncrlError, ConfigError


def test_without_a_command_the_table_is_shown_and_the_exit_code_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "serve-rollout" in capsys.readouterr().out


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "there is no command 'trian'" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert importlib.import_module(f"asyncrl.commands.{name.replace('-', '_')}").__doc__.split(".")[0] in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_an_error_for_the_user_is_one_message_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback of what a file or a key did wrong (B096, B113)."""

    def fail(_: object) -> int:
        raise ConfigError("actor.lr = -1 must be positive")

    monkeypatch.setattr(importlib.import_module("asyncrl.commands.audit"), "run", fail)
    assert cli.main(["audit", "missing.yaml"]) == ConfigError.exit_code
    assert capsys.readouterr().err == "asyncrl audit: actor.lr = -1 must be positive\n"


def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(importlib.import_module("asyncrl.commands.audit"), "run", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["audit", "missing.yaml"])


def test_exit_codes_of_the_error_tree_tell_its_kinds_apart() -> None:
    codes = {error.__name__: error.exit_code for error in AsyncrlError.__subclasses__()}
    assert 0 not in codes.values()
    assert codes["WaitTimeout"] == 75
    assert codes["FencedOut"] not in (codes["ProcessDied"], codes["CheckpointError"])


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "asyncrl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("asyncrl ")
