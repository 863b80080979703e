"""The starter as a whole: makes what is missing, once, and overwrites nothing of anybody's."""

import json
import threading

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from asyncrl.config import Config, DataConfig, ModelConfig, StarterConfig
from asyncrl.config.trainer import StarterModelConfig, StarterSftConfig, StarterTaskConfig, StarterTeacherConfig
from asyncrl.errors import ConfigError, WaitTimeout
from asyncrl.starter import make
from asyncrl.starter.lock import locked

STARTER = StarterConfig(
    model=StarterModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1),
    task=StarterTaskConfig(train_rows=64, val_rows=16),
    sft=StarterSftConfig(steps=3, batch_size=4),
)


def config_at(directory, **starter):
    return Config(
        model=ModelConfig(path=directory / "model"),
        data=DataConfig(train_files=(directory / "train.parquet",), val_files=(directory / "val.parquet",)),
        starter=STARTER.model_copy(update=starter),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("starter")
    lines = make(config_at(directory))
    return directory, lines


def test_everything_missing_is_made_and_named(made):
    directory, lines = made
    assert [line.split(":")[0] for line in lines] == [
        str(directory / name) for name in ("train.parquet", "val.parquet", "model")
    ]


def test_what_is_there_is_not_made_again(made):
    directory, _ = made
    assert make(config_at(directory)) == []


def test_the_same_seed_makes_the_same_bytes(made, tmp_path):
    directory, _ = made
    make(config_at(tmp_path))
    for name in ("train.parquet", "val.parquet", "model/model.safetensors", "model/tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (directory / name).read_bytes(), name


def test_only_what_is_missing_is_made(tmp_path):
    make(config_at(tmp_path))
    before = (tmp_path / "val.parquet").read_bytes()
    (tmp_path / "val.parquet").unlink()
    assert len(make(config_at(tmp_path))) == 1
    assert (tmp_path / "val.parquet").read_bytes() == before


def test_weights_are_saved_in_the_wire_dtype_and_load_in_transformers(made):
    directory, _ = made
    stored = load_file(directory / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    settings = json.loads((directory / "model" / "config.json").read_text())
    assert settings["torch_dtype"] == settings["dtype"] == "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=torch.float32)
    assert type(model).__name__ == "LlamaForCausalLM"
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[name].float()), name


def test_generation_ends_at_the_end_token(made):
    directory, _ = made
    generation = json.loads((directory / "model" / "generation_config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(directory / "model")
    assert generation["eos_token_id"] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|end|>")


@pytest.mark.parametrize("reader", [AutoTokenizer, PreTrainedTokenizerFast])
def test_text_survives_the_tokenizer_spaces_included(made, reader):
    directory, _ = made
    tokenizer = reader.from_pretrained(directory / "model")
    text = "sort 52 81, a+b=c: what?"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode("new\nline É", add_special_tokens=False)) == "new?line ?"


def test_the_chat_template_frames_the_prompt_with_single_tokens(made):
    directory, _ = made
    tokenizer = AutoTokenizer.from_pretrained(directory / "model")
    messages = [{"role": "user", "content": "sort 21"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == "<|user|>sort 21<|assistant|>"
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert len(ids) == len("sort 21") + 2


def test_the_files_hold_the_rows_of_the_task(made):
    directory, _ = made
    rows = pq.read_table(directory / "train.parquet").to_pylist()
    assert len(rows) == 64
    assert rows[0]["prompt"][0]["role"] == "user"
    assert rows[0]["reward_model"]["ground_truth"] == "".join(
        sorted(rows[0]["prompt"][0]["content"].removeprefix("sort "))
    )


def test_other_settings_than_it_was_made_from_are_refused_by_name(made):
    directory, _ = made
    with pytest.raises(ConfigError, match=r"made with seed = 0, the configuration says 1\. Nothing was overwritten"):
        make(config_at(directory, seed=1))


def test_an_edited_model_is_refused_and_stays(tmp_path):
    make(config_at(tmp_path))
    settings = tmp_path / "model" / "config.json"
    settings.write_text(settings.read_text() + " ")
    with pytest.raises(ConfigError, match=r"was changed: config\.json is not what the starter made"):
        make(config_at(tmp_path))
    assert settings.read_text().endswith(" ")


def test_an_incomplete_model_is_refused(tmp_path):
    make(config_at(tmp_path))
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"incomplete: tokenizer\.json is gone"):
        make(config_at(tmp_path))


def test_a_directory_of_somebody_else_without_a_model_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no complete model"):
        make(config_at(tmp_path))
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"


def test_a_model_of_the_users_own_is_left_alone(made, tmp_path):
    directory, _ = made
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes((directory / "model" / name).read_bytes())
    made_here = [line.split(":")[0] for line in make(config_at(tmp_path))]
    assert made_here == [str(tmp_path / name) for name in ("train.parquet", "val.parquet")]


def test_a_failure_leaves_nothing_behind(tmp_path):
    broken = STARTER.model.model_copy(update={"heads": 3})
    with pytest.raises(ConfigError, match=r"multiple of 2 x starter\.model\.heads"):
        make(config_at(tmp_path, model=broken))
    assert not (tmp_path / "model").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_without_a_starter_section_nothing_is_made(tmp_path):
    assert make(config_at(tmp_path).model_copy(update={"starter": None})) == []
    assert list(tmp_path.iterdir()) == []


def test_two_commands_at_once_make_it_once(tmp_path):
    lines = []
    threads = [threading.Thread(target=lambda: lines.extend(make(config_at(tmp_path)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines) == 3


def test_a_lock_that_is_kept_ends_in_a_timeout_that_names_it(tmp_path):
    with (
        locked(tmp_path / "x.lock", deadline_s=1.0),
        pytest.raises(WaitTimeout, match=r"starter waits for its lock: .*x\.lock"),
        locked(tmp_path / "x.lock", deadline_s=0.05),
    ):
        raise AssertionError("two holders of one lock")


def test_a_teacher_is_a_second_model_with_the_same_tokenizer_and_leaves_the_first_as_it_was(made, tmp_path):
    directory, _ = made
    teacher = StarterTeacherConfig(path=tmp_path / "teacher", steps=4)
    lines = make(config_at(tmp_path, teacher=teacher))
    assert [line.split(":")[0] for line in lines][-1] == str(tmp_path / "teacher")
    assert make(config_at(tmp_path, teacher=teacher)) == []
    assert make(config_at(tmp_path)) == []
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "teacher"))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert (tmp_path / "model/model.safetensors").read_bytes() == (directory / "model/model.safetensors").read_bytes()
    assert (tmp_path / "teacher/tokenizer.json").read_bytes() == (directory / "model/tokenizer.json").read_bytes()


def test_a_teacher_of_other_settings_is_not_overwritten(made, tmp_path):
    path = tmp_path / "teacher"
    make(config_at(tmp_path, teacher=StarterTeacherConfig(path=path, steps=1)))
    other = StarterTeacherConfig(path=path, steps=2)
    with pytest.raises(ConfigError, match=r"starter\.teacher\.path = .* was made with sft"):
        make(config_at(tmp_path, teacher=other))
