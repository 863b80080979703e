"""Preference algorithms over two ranks that share the model, its reference and the groups: the steps of one rank."""

import pytest

from asyncrl.algorithms import ALGORITHMS
from asyncrl.trainer.parallel import OneRank
from tests.support.preference_rank import train
from tests.support.tiny_policy import write_tiny_model
from tests.support.two_ranks import run_ranks

NAMES = sorted(name for name, row in ALGORITHMS.items() if row.one_update_a_step)
COMPARED = ("actor/pg_loss", "actor/grad_norm", "pref/margin", "pref/accuracy", "pref/tie_frac", "pref/chosen_reward")


def test_two_ranks_take_the_steps_of_one(tmp_path):
    model_dir = write_tiny_model(tmp_path / "model")
    first, second = run_ranks("tests.support.preference_rank", 2, str(model_dir), *NAMES, timeout_s=300.0)
    assert second == {name: [] for name in NAMES}
    for name in NAMES:
        alone = train(model_dir, name, OneRank())
        assert len(first[name]) == len(alone)
        for step, (got, want) in enumerate(zip(first[name], alone, strict=True)):
            for metric in COMPARED:
                assert got[metric] == pytest.approx(want[metric], rel=1e-3, abs=1e-5), (name, step, metric)
        assert alone[-1]["pref/margin"] != 0.0, "the second step is taken away from the reference"
