"""A critic on two ranks, as real processes, has the gradients of one, and goes on from a checkpoint of either."""

from functools import partial

import torch

from asyncrl.trainer.parallel import OneRank
from tests.support import critic_rank
from tests.support.two_ranks import close as close_to
from tests.support.two_ranks import fixtures_of

model_dir, one, two = fixtures_of(critic_rank)
close = partial(close_to, rel=5e-3)


def test_two_ranks_have_the_gradients_of_one(one, two):
    """The first optimizer step begins with equal weights; the head alone has a gradient, for it begins at zero."""
    single, pair = one[0]["gradients"], [rank["whole"]["gradients"] for rank in two[0]]
    assert len(single) == len(pair[0]) == 6
    for step in (0, 1):
        for name, values in single[step].items():
            expected = torch.tensor(values)
            for rank in pair:
                torch.testing.assert_close(torch.tensor(rank[step][name]), expected, atol=1e-5, rtol=1e-3, msg=name)
    assert any(single[0]["head.weight"])
    assert any(single[1]["trunk.norm.weight"])


def test_two_ranks_see_the_metrics_of_one(one, two):
    for single, pair in zip(one[0]["metrics"], two[0][0]["whole"]["metrics"], strict=True):
        close(single, pair)


def test_a_checkpoint_of_one_goes_on_as_two(one, two):
    close(two[0][0]["resumed"]["metrics"][0], one[0]["metrics"][2])


def test_a_checkpoint_of_two_ranks_goes_on_as_one(model_dir, two, tmp_path):
    went_on = critic_rank.train(model_dir, tmp_path, OneRank(), 2, two[1] / "whole" / "checkpoints")
    close(went_on["metrics"][0], two[0][0]["whole"]["metrics"][2])
