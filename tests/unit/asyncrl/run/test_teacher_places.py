"""Which teachers this machine serves, and at which address workers find them."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from asyncrl.config import Config, ModelConfig, TeacherConfig
from asyncrl.errors import ConfigError, PreflightError
from asyncrl.run import teacher_places
from asyncrl.run.handover import read_config, write_config
from asyncrl.run.teacher_places import with_addresses
from tests.support.local_models import save_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "llama")


def config_of(model_dir: Path, *teachers: TeacherConfig, mode: str = "separate_async") -> Config:
    return Config(mode=mode, model=ModelConfig(path=model_dir), teachers=teachers)


def test_a_teacher_with_a_path_gets_an_address_and_others_keep_theirs(model_dir: Path, tmp_path: Path) -> None:
    adopted = TeacherConfig(name="far", urls=("http://far:1",))
    config, served = with_addresses(config_of(model_dir, adopted, TeacherConfig(name="near", path=model_dir)))
    assert config.teachers[0] == adopted
    (near,) = served
    near.port.close()
    assert (near.name, near.path) == ("near", model_dir)
    assert near.url.startswith("http://127.0.0.1:")
    assert config.teachers[1].urls == (near.url,)
    assert read_config(write_config(config, tmp_path / "config.json")).teachers == config.teachers


def test_a_teacher_with_another_tokenizer_is_refused(model_dir: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model_dir, tmp_path / "other")
    tokenizer = Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.add_tokens(["one more"])
    tokenizer.save(str(other / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"teacher 'near': the tokenizer of .* token 'one more'"):
        with_addresses(config_of(model_dir, TeacherConfig(name="near", path=other)))
    (other / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        with_addresses(config_of(model_dir, TeacherConfig(name="near", path=other)))


def test_a_teacher_cannot_take_turns_on_devices_with_the_trainer(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(model_dir, TeacherConfig(name="near", path=model_dir), mode="colocate_async")
    (near,) = with_addresses(config)[1]  # without devices there is nothing to take turns on
    near.port.close()
    monkeypatch.setattr(teacher_places, "num_devices", lambda: 8)
    with pytest.raises(PreflightError, match="a teacher cannot step aside"):
        with_addresses(config)
