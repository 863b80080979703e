"""A tiny model directory for the trainer's unit tests, made once."""

import pytest

from tests.support.tiny_policy import write_tiny_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A two-layer Llama with random weights, in bfloat16 words."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
