"""The gateway's key: given, or made once for this user alone."""

import stat
from pathlib import Path

import pytest

from asyncrl.run.gateway_key import KEY_VARIABLE, gateway_key


def test_an_own_key_is_made_once_and_only_its_user_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    key, whence = gateway_key(tmp_path)
    file = tmp_path / "gateway" / "key"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (key, 0o600)
    assert len(key) >= 32
    assert gateway_key(tmp_path) == (key, whence)
    assert key not in whence


def test_a_file_whose_writer_died_before_it_wrote_gets_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "key").touch(mode=0o600)
    key, _ = gateway_key(tmp_path)
    assert key
    assert (tmp_path / "gateway" / "key").read_text() == key


def test_a_given_key_wins_and_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "given")
    key, whence = gateway_key(tmp_path)
    assert key == "given"
    assert whence == f"of the environment variable {KEY_VARIABLE}"
    assert not (tmp_path / "gateway").exists()
