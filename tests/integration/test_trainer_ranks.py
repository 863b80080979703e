"""Two ranks on gloo, as real processes, train like one: losses, weights, checkpoints, exports."""

from functools import partial

import torch
from safetensors.torch import load_file

from asyncrl.trainer.parallel import OneRank
from tests.support import policy_rank
from tests.support.two_ranks import close as close_to
from tests.support.two_ranks import fixtures_of

model_dir, one, two = fixtures_of(policy_rank)
close = partial(close_to, rel=2e-3)


def test_two_ranks_share_the_tokens_and_see_the_losses_of_one(one, two):
    found, ranks = one[0], [rank["whole"] for rank in two[0]]
    assert sum(rank["tokens"] for rank in ranks) == found["tokens"]
    assert all(rank["tokens"] > 0 for rank in ranks)
    for single, pair in zip(found["metrics"], ranks[0]["metrics"], strict=True):
        close(single, pair)


def test_both_ranks_publish_one_version_together(two):
    ranks = [rank["whole"] for rank in two[0]]
    assert ranks[0]["digests"] == ranks[1]["digests"]
    assert len(set(ranks[0]["digests"])) == 3


def test_the_exports_of_one_and_two_ranks_agree(one, two):
    single = load_file(one[1] / "export" / "model.safetensors")
    pair = load_file(two[1] / "whole" / "export" / "model.safetensors")
    assert single.keys() == pair.keys()
    for name, tensor in single.items():
        torch.testing.assert_close(tensor.float(), pair[name].float(), atol=2e-2, rtol=0, msg=name)


def test_a_checkpoint_of_two_ranks_goes_on_as_one(model_dir, two, tmp_path):
    went_on = policy_rank.train(model_dir, tmp_path, OneRank(), 2, two[1] / "whole" / "checkpoints")
    close(went_on["metrics"][0], two[0][0]["whole"]["metrics"][2])


def test_a_checkpoint_of_one_goes_on_as_two(one, two):
    close(two[0][0]["resumed"]["metrics"][0], one[0]["metrics"][2])
