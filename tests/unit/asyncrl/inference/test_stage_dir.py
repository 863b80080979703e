"""The private folder between a host and its server."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, PreflightError
from asyncrl.inference.stage_dir import StageDir


def test_the_folder_is_private_and_what_an_earlier_host_left_is_gone(tmp_path: Path) -> None:
    stage = StageDir.of_started(str(tmp_path / "new"), tmp_path / "run", "server-0")
    stage.open()
    (stage.for_life("first") / "parts").write_bytes(b"x")
    again = StageDir.of_started(str(tmp_path / "new"), tmp_path / "run", "server-0")
    assert again.path == stage.path
    again.open()
    assert list(again.path.iterdir()) == []
    assert again.path.stat().st_mode & 0o777 == 0o700
    assert again.for_life("second").stat().st_mode & 0o777 == 0o700
    again.end_life("second")
    assert list(again.path.iterdir()) == []
    again.close()
    assert not again.path.exists()


def test_runs_and_servers_have_folders_of_their_own(tmp_path: Path) -> None:
    paths = {
        StageDir.of_started(str(tmp_path), tmp_path / run, server).path
        for run in ("a", "b")
        for server in ("server-0", "server-1")
    }
    assert len(paths) == 4


def test_the_servers_of_a_run_have_one_shared_folder_beside_theirs_and_two_runs_have_two(tmp_path: Path) -> None:
    stages = [
        StageDir.of_started(str(tmp_path), tmp_path / "run", "server-0"),
        StageDir.of_started(str(tmp_path), tmp_path / "run", "server-1"),
        StageDir.of_adopted(str(tmp_path), tmp_path / "run", "adopted-0"),
    ]
    other = StageDir.of_started(str(tmp_path), tmp_path / "other", "server-0")
    assert len({stage.shared for stage in stages}) == 1
    assert other.shared != stages[0].shared
    assert stages[0].shared.parent == tmp_path
    assert stages[0].shared not in {stage.path for stage in stages}


def test_an_adopted_server_keeps_its_one_folder(tmp_path: Path) -> None:
    stage = StageDir.of_adopted(str(tmp_path), tmp_path / "run", "adopted-0")
    stage.open()
    assert stage.for_life("first") == stage.for_life("second") == tmp_path / "adopted-0"
    stage.end_life("first")
    assert stage.path.is_dir()
    with pytest.raises(ConfigError, match="ASYNCRL_STAGE_DIR"):
        StageDir.of_adopted(None, tmp_path / "run", "adopted-0")


def test_a_folder_that_somebody_prepared_for_us_is_refused(tmp_path: Path) -> None:
    stage = StageDir.of_started(str(tmp_path), tmp_path / "run", "server-0")
    stage.path.symlink_to(tmp_path)
    with pytest.raises(PreflightError, match="not ours"):
        stage.open()


def test_a_place_that_cannot_hold_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match=r"weightsync\.stage_dir"):
        StageDir.of_started(str(tmp_path / "file"), tmp_path, "server-0").open()
