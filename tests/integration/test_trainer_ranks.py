"""Two ranks on gloo, as real processes, train like one: losses, weights, checkpoints, exports."""

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny_policy import write_tiny_model
from tests.support.two_ranks import run_ranks

RANK = "tests.support.policy_rank"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", wire_dtype="bfloat16")


@pytest.fixture(scope="module")
def results(model_dir, tmp_path_factory):
    """world -> (what its ranks found, their output directory)."""
    outcome = {}
    for world in (1, 2):
        out = tmp_path_factory.mktemp(f"ranks{world}")
        outcome[world] = (run_ranks(RANK, world, str(model_dir), str(out), "0", "-"), out)
    return outcome


def close(one, other, names=None):
    for name in names or one.keys() & other.keys():
        assert one[name] == pytest.approx(other[name], abs=2e-4, rel=2e-3), name


def test_two_ranks_share_the_tokens_and_see_the_losses_of_one(results):
    (single,), pair = results[1][0], results[2][0]
    assert sum(rank["tokens"] for rank in pair) == single["tokens"]
    assert all(rank["tokens"] > 0 for rank in pair)
    for one, two in zip(single["metrics"], pair[0]["metrics"], strict=True):
        assert one.keys() == two.keys()
        close(one, two)


def test_both_ranks_publish_one_version_together(results):
    pair = results[2][0]
    assert pair[0]["digests"] == pair[1]["digests"]
    assert len(set(pair[0]["digests"])) == 3


def test_the_exports_of_one_and_two_ranks_agree(results):
    one, two = (load_file(results[world][1] / "export" / "model.safetensors") for world in (1, 2))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor.float(), two[name].float(), atol=2e-2, rtol=0, msg=name)


def test_a_checkpoint_of_two_ranks_goes_on_as_one_and_the_other_way_round(results, model_dir, tmp_path):
    for written, read in ((2, 1), (1, 2)):
        found, out = results[written]
        went_on = run_ranks(RANK, read, str(model_dir), str(tmp_path / str(read)), "2", str(out / "checkpoints"))
        close(went_on[0]["metrics"][0], found[0]["metrics"][2])
