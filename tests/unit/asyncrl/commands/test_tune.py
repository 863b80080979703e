"""`asyncrl tune` on a run's directory and on a profile: the table, the choice, and what it says of bad input."""

import json
from pathlib import Path

import pytest
import yaml

from asyncrl import cli
from asyncrl.tuning import profile_file
from asyncrl.tuning.fit import fit
from tests.unit.asyncrl.tuning.profiles import profile
from tests.unit.asyncrl.tuning.run_dirs import write_run

FEW = ["--limits", "0,2", "--steps-per-version", "1", "--steps", "6"]


def test_a_run_gives_a_table_a_choice_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_run(tmp_path / "run")
    assert cli.main(["tune", str(directory), *FEW]) == 0
    printed = capsys.readouterr()
    table, choice = printed.out.split("\n\n", 1)
    assert [line.split()[:4] for line in table.splitlines()[1:]] == [
        ["0", "wait", "1", "1+1"],
        ["2", "wait", "1", "1+1"],
        ["2", "drop", "1", "1+1"],
    ]
    assert "this run" in table.splitlines()[2]
    assert table.count("<- recommended") == 1
    assert "Recommended: limit" in choice
    assert "Set staleness.limit=" in choice
    assert "Effective sample size in this run: 1.000 at lag 0, 0.875 at lag 2." in choice
    assert str(directory / "tune.png") in printed.err
    assert (directory / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_the_profile_the_rows_and_the_keys_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", str(write_run(tmp_path)), "--json", "--devices", "3", "--policies", "wait", *FEW]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["limit"], row["servers"], row["ranks"]) for row in found["rows"]] == [
        (0, 1, 2),
        (0, 2, 1),
        (2, 1, 2),
        (2, 2, 1),
    ]
    chosen = found["rows"][found["recommended"]["row"]]
    assert found["recommended"]["keys"]["staleness.limit"] == chosen["limit"]
    assert found["profile"]["workload"]["groups_per_step"] == 4


def test_a_saved_profile_predicts_what_its_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, saved = write_run(tmp_path / "run"), tmp_path / "profile.yaml"
    assert cli.main(["tune", str(directory), "--save", str(saved), "--json", *FEW]) == 0
    of_run = json.loads(capsys.readouterr().out)
    assert profile_file.read(saved) == fit(directory)
    assert cli.main(["tune", str(saved), "--json", *FEW]) == 0
    assert json.loads(capsys.readouterr().out) == of_run


def test_more_slots_are_tried_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.yaml"
    profile_file.write(profile(step_s=0.1), path)
    rates = []
    for slots in ("1", "4"):
        assert cli.main(["tune", str(path), "--json", "--slots", slots, "--limits", "4", *FEW[2:]]) == 0
        rates.append(json.loads(capsys.readouterr().out)["rows"][0]["tokens_per_s"])
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no YAML"),
        ("speeds: {token_s: {1: -2}}", "speeds.token_s.1: Input should be greater than 0"),
        ("[]", "is no profile"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_every_problem(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    assert cli.main(["tune", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_place_with_neither_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", str(tmp_path / "nothing.yaml")]) == 2
    assert "Give a run directory or a profile" in capsys.readouterr().err


def test_a_profile_says_in_yaml_what_people_may_change(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    profile_file.write(profile(environment_s={0.5: 2.0}), path)
    written = yaml.safe_load(path.read_text())
    assert set(written) == {"setting", "workload", "answers", "speeds", "ess"}
    assert written["answers"]["environment_s"] == {0.5: 2.0}
