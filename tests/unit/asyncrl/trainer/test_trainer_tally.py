"""Metrics of micro-batches and ranks: divided once, extremes over all."""

import torch

from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.tally import Tally


def test_means_of_parts_are_not_averaged():
    tally = Tally()
    tally.mean("x", 1.0, 1)
    tally.mean("x", 0.0, 3)
    assert tally.values() == {"x": 0.25}


def test_ranks_merge_as_if_they_were_one():
    one, other, whole = Tally(), Tally(), Tally()
    for tally, number in ((one, 1.0), (other, 5.0)):
        tally.mean("m", number, 2)
        tally.extreme("e/max", number)
        tally.extreme("e/min", number)
        tally.count("n", 3)
        tally.take({"t": (torch.tensor(number), torch.tensor(1.0))}, {"t_max": torch.tensor(number)})
        whole.merge(tally.to_bytes())
    assert whole.values() == {"m": 1.5, "e/max": 5.0, "e/min": 1.0, "n": 6.0, "t": 3.0, "t_max": 5.0}


def test_what_was_measured_on_nothing_is_left_out():
    tally = Tally()
    tally.mean("nothing", 0.0, 0)
    assert tally.values() == {}


def test_effective_sample_size_follows_from_the_weights_of_a_lag():
    tally = Tally()
    weights = torch.tensor([1.0, 3.0])
    tally.take(
        {"lag_1/_weight": (weights.sum(), torch.tensor(2)), "lag_1/_square": ((weights**2).sum(), torch.tensor(2))}
    )
    assert tally.values() == {"lag_1/ess": 4.0 / 5.0}


def test_names_are_those_that_people_know_from_verl():
    names = renamed(
        dict.fromkeys(("loss/policy", "approx_kl", "weights/mean", "mismatch/kl_rollout_train", "ours"), 0.0)
    )
    assert list(names) == [
        "actor/pg_loss",
        "actor/ppo_kl",
        "rollout_corr/rollout_is_mean",
        "rollout_corr/kl",
        "ours",
    ]
