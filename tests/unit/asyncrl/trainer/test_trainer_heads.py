"""Models whose heads cannot be cut are refused before a rank starts, by the name of the number that is in the way."""

import json

import pytest

from asyncrl.errors import ConfigError
from asyncrl.trainer.heads import require_whole_heads_of


def directory(tmp_path, settings):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return tmp_path


def test_heads_that_are_multiples_pass(tmp_path):
    require_whole_heads_of(directory(tmp_path, {"num_attention_heads": 8, "num_key_value_heads": 2}), 2)
    require_whole_heads_of(directory(tmp_path, {"num_attention_heads": 7, "num_key_value_heads": 1}), 1)


@pytest.mark.parametrize("name", ["num_attention_heads", "num_key_value_heads"])
def test_a_number_of_heads_that_is_no_multiple_is_named(tmp_path, name):
    settings = {"num_attention_heads": 8, "num_key_value_heads": 4, name: 3}
    with pytest.raises(ConfigError, match=rf"config\.json: {name} = 3 is no multiple of trainer\.parallel\.tp = 4"):
        require_whole_heads_of(directory(tmp_path, settings), 4)


def test_the_language_part_of_a_larger_model_counts(tmp_path):
    settings = {"num_attention_heads": 3, "text_config": {"num_attention_heads": 4}}
    require_whole_heads_of(directory(tmp_path, settings), 4)


def test_a_directory_without_settings_is_left_to_others(tmp_path):
    require_whole_heads_of(tmp_path, 2)
