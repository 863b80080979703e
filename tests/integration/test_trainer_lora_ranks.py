"""Two ranks that share a frozen model and its adapter, as real processes, train, save and export like one."""

from functools import partial
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.trainer.parallel import OneRank
from tests.support import lora_rank
from tests.support.split_rank import write_model
from tests.support.two_ranks import close as close_to
from tests.support.two_ranks import fixtures_of

_, one, two = fixtures_of(lora_rank)
close = partial(close_to, rel=2e-3)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model whose heads two ranks can share."""
    return write_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def low(model_dir, tmp_path_factory):
    """What one rank found in bfloat16 arithmetic."""
    return lora_rank.train_low(model_dir, tmp_path_factory.mktemp("low"), OneRank())


def test_two_ranks_see_the_metrics_of_one(one, two):
    for single, pair in zip(one[0]["metrics"], two[0][0]["whole"]["metrics"], strict=True):
        close(single, pair)


def test_two_ranks_that_share_every_product_see_the_metrics_of_one(one, two):
    """q_proj is cut by columns, o_proj and down_proj by rows, and so are B or A of their adapters."""
    for single, pair in zip(one[0]["metrics"], two[0][0]["cut"]["metrics"], strict=True):
        close(single, pair)


def test_the_policy_of_two_ranks_leaves_the_reference_where_it_was(two):
    kl = [metrics["actor/kl_loss"] for metrics in two[0][0]["whole"]["metrics"]]
    assert 0 < kl[0] < kl[2]


def test_frozen_weights_in_bfloat16_beside_an_adapter_in_float32_are_shared(low, two):
    """Lower precision rounds sums in another order, so only the size of things is the same."""
    for single, pair in zip(low["metrics"], two[0][0]["low"]["metrics"], strict=True):
        for name in ("actor/grad_norm", "actor/entropy", "actor/kl_loss"):
            assert single[name] == pytest.approx(pair[name], rel=0.2, abs=1e-3), name


def test_both_ranks_publish_one_version_together(two):
    for kind in ("whole", "low", "cut"):
        digests = [rank[kind]["digests"] for rank in two[0]]
        assert digests[0] == digests[1]
        assert len(set(digests[0])) == 3


def test_the_exports_of_one_and_two_ranks_agree(one, two):
    for name, way in product(("model.safetensors", "adapter/adapter_model.safetensors"), ("whole", "cut")):
        single = load_file(one[1] / "export" / name)
        pair = load_file(two[1] / way / "export" / name)
        assert single.keys() == pair.keys()
        for key, tensor in single.items():
            torch.testing.assert_close(tensor.float(), pair[key].float(), atol=2e-2, rtol=0, msg=key)
    assert len(single) == 2 * 3 * 2


def test_an_export_is_what_was_published(one):
    assert one[0]["exported"] == one[0]["digests"][-1]


def test_a_checkpoint_of_two_ranks_goes_on_as_one(model_dir, two, tmp_path):
    went_on = lora_rank.train(model_dir, tmp_path, OneRank(), 2, two[1] / "whole" / "checkpoints")
    close(went_on["metrics"][0], two[0][0]["whole"]["metrics"][2])


def test_a_checkpoint_of_one_goes_on_as_two(one, two):
    close(two[0][0]["resumed"]["metrics"][0], one[0]["metrics"][2])
