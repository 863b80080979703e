"""What `asyncrl train` says before it starts anything."""

import argparse
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.commands import train
from asyncrl.commands.config_arguments import load_from
from asyncrl.config import Config
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "note"),
    [("rollout.top_p=0.9", "note: rollout.top_p = 0.9"), ("rollout.top_k=5", "note: rollout.top_k = 5"), ("", "")],
)
def test_a_bias_of_the_sampling_is_said_once_and_stops_nothing(
    override: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B084: ratios of 1 at equal weights hide that tokens come from a part of the distribution."""

    def reached(_: Config) -> None:
        raise ConfigError("the run would start here")

    monkeypatch.setattr(train, "make_missing", reached)
    file = tmp_path / "run.yaml"
    file.write_text("rollout:\n  n: 8\n")
    assert cli.main(["train", str(file), *([override] if override else [])]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert said.startswith(note)
    assert said.count("note: ") == bool(note)
    assert said.endswith("asyncrl train: the run would start here\n")


def test_top_k_of_0_is_refused_as_every_server_would_refuse_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rollout:\n  top_k: 0\n")
    assert cli.main(["train", str(file)]) == ConfigError.exit_code
    assert "rollout.top_k = 0 leaves no token to draw; -1 is off" in capsys.readouterr().err


def test_an_address_of_ray_chooses_it_for_the_processes(tmp_path: Path) -> None:
    parser, file = argparse.ArgumentParser(), tmp_path / "run.yaml"
    train.add_arguments(parser)
    file.write_text("rollout:\n  n: 8\n")
    args = parser.parse_args([str(file), "--ray-address", "10.0.0.4:6379"])
    config = load_from(args).config
    assert (config.cluster.backend, config.cluster.ray_address) == ("ray", "10.0.0.4:6379")
