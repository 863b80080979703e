"""Two and four ranks in every arrangement, as real processes, train like one: losses, weights, checkpoints, exports."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.config import Config, ModelConfig
from asyncrl.trainer.export import export_checkpoint
from asyncrl.trainer.parallel import OneRank
from tests.support import policy_rank, shared_rows
from tests.support.sliced_facts import LAYERS, LOGITS
from tests.support.split_rank import ARRANGEMENTS, EXPERTS, SAVED, write_model
from tests.support.tiny_moe import NUM_EXPERTS, write_tiny_moe
from tests.support.two_ranks import close as close_to
from tests.support.two_ranks import run_ranks

close = partial(close_to, rel=2e-3)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_moe(directory / EXPERTS)
    return write_model(directory / "model")


@pytest.fixture(scope="module")
def one(model_dir, tmp_path_factory):
    """What one rank found, and its directory."""
    out = tmp_path_factory.mktemp("one")
    return policy_rank.train(model_dir, out, OneRank()), out


@pytest.fixture(scope="module")
def split(model_dir, tmp_path_factory):
    """What each of four ranks found in each arrangement, and their directory."""
    out = tmp_path_factory.mktemp("split")
    (ranks,) = run_ranks("tests.support.split_rank", 1, str(model_dir), str(out), timeout_s=280.0)
    return ranks, out


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_arrangement_sees_the_losses_of_one_rank_and_counts_each_token_once(one, split, name):
    single, parallel = one[0], ARRANGEMENTS[name]
    ranks = [rank[name] for rank in split[0][: parallel.world]]
    alike = parallel.tp * parallel.cp
    assert sum(rank["tokens"] for rank in ranks) == alike * single["tokens"]
    assert len(ranks[0]["metrics"]) == policy_rank.STEPS
    for expected, found in zip(single["metrics"], ranks[0]["metrics"], strict=True):
        close(expected, found)


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_arrangement_ends_with_the_weights_of_one_rank(one, split, name):
    single = load_file(one[1] / "export" / "model.safetensors")
    whole = load_file(split[1] / name / "export" / "model.safetensors")
    assert single.keys() == whole.keys()
    for key, tensor in single.items():
        torch.testing.assert_close(tensor.float(), whole[key].float(), atol=2e-2, rtol=0, msg=f"{name}: {key}")


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_the_ranks_publish_what_they_export(split, name):
    ranks = [rank[name] for rank in split[0] if name in rank]
    assert all(rank["digests"] == ranks[0]["digests"] for rank in ranks)
    assert len(set(ranks[0]["digests"])) == policy_rank.STEPS
    assert ranks[0]["digests"][-1] == ranks[0]["exported"]


def test_sliced_layers_and_logits_have_the_outputs_and_gradients_of_whole_ones(split):
    """With biases, and in the styles that the other tests' models do not have."""
    for rank in split[0][:2]:
        assert rank["layers"] == {name: [] for name in (*LAYERS, LOGITS)}


def test_a_checkpoint_of_products_and_parameters_split_goes_on_as_one_and_as_two(model_dir, split, tmp_path):
    expected = split[0][0][SAVED]["metrics"][2]
    alone = policy_rank.train(model_dir, tmp_path, OneRank(), 2, split[1] / SAVED / "checkpoints")
    close(alone["metrics"][0], expected)
    close(split[0][0]["resumed"]["metrics"][0], expected)


def test_ranks_that_share_rows_take_the_other_steps_of_one_rank_too(model_dir, split):
    """Losses of whole rows, activations that are made again, what is measured of logits, and a critic."""
    shared = [rank["shared rows"] for rank in split[0]]
    alone = shared_rows.facts(model_dir, OneRank(), 0, 1)
    close(alone["metrics"], shared[0]["metrics"])
    for name in ("squares", "values"):
        assert shared[0][name] == shared[1][name]  # the ranks of one row
        assert shared[2][name] == shared[3][name]
        assert sorted(shared[0][name] + shared[2][name]) == pytest.approx(sorted(alone[name]), abs=1e-4)


def test_a_model_with_experts_trains_like_on_one_rank_and_is_published_under_its_names(model_dir, split, tmp_path):
    """Five experts on two ranks that share parameters: three and two; ranks that share products hold them all."""
    alone = policy_rank.train(model_dir.with_name(EXPERTS), tmp_path, OneRank())
    ranks = [rank["experts"] for rank in split[0]]
    for expected, found in zip(alone["metrics"], ranks[0]["metrics"], strict=True):
        close(expected, found)
    assert all(rank["digests"] == ranks[0]["digests"] for rank in ranks)
    assert ranks[0]["digests"][-1] == ranks[0]["exported"]
    single, whole = (load_file(path / "export" / "model.safetensors") for path in (tmp_path, split[1] / EXPERTS))
    assert single.keys() == whole.keys() == load_file(model_dir.with_name(EXPERTS) / "model.safetensors").keys()
    assert f"model.layers.2.mlp.experts.{NUM_EXPERTS - 1}.up_proj.weight" in whole
    for name, tensor in single.items():
        torch.testing.assert_close(tensor.float(), whole[name].float(), atol=2e-2, rtol=0, msg=name)
    exported = export_checkpoint(
        split[1] / EXPERTS / "checkpoints", Config(model=ModelConfig(path=model_dir.with_name(EXPERTS))), tmp_path / "x"
    )
    assert load_file(exported / "model.safetensors").keys() == whole.keys()


def test_a_checkpoint_holds_each_element_once(split):
    (directory,) = (split[1] / "replicate 2 x tp 2" / "checkpoints").iterdir()
    files = [load_file(path) for path in sorted(directory.glob("rank-*.safetensors"))]
    weights = [sum(t.numel() for n, t in file.items() if n.startswith("weights/")) for file in files]
    whole = sum(t.numel() for t in load_file(split[1] / SAVED / "export" / "model.safetensors").values())
    assert sum(weights) == whole
    assert weights[2:] == [0, 0]  # the second copy
