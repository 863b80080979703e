"""Tensors that an engine takes no word of: kept beside it where that is harmless, else refused as a mistake."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.fused_model import FusedModel, checkpoint, save_checkpoint
from tests.support.rank_threads import RankThreads
from weightsync.address_map import AddressMap
from weightsync.digest import digest_of_model_dir, total
from weightsync.engine_weights import EngineWeights
from weightsync.manifest import Manifest
from weightsync.ownership import settle
from weightsync.peers import OnlyPeer, Peers

TABLE = "model.rotary_emb.inv_freq"


class Deaf(FusedModel):
    """It computes its own rotary table, and does not hear of some names."""

    unheard: tuple[str, ...] = (TABLE,)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        super().load_weights((name, weight) for name, weight in weights if name not in self.unheard)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return save_checkpoint({**checkpoint(), TABLE: torch.linspace(0, 1, 8)}, tmp_path / "model")


def settled(model: FusedModel, directory: Path, peers: Peers) -> tuple[AddressMap, list[str], Manifest]:
    manifest = Manifest.from_model_dir(directory, "bfloat16")
    with torch.no_grad():
        model.load_weights((name, tensor) for name, tensor in weights_of(directory).items())
    boxes = AddressMap.record(model, manifest.tensors)
    return *settle(boxes, manifest.tensors, peers, model), manifest


def weights_of(directory: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


def test_a_tensor_that_the_engine_ignores_stands_in_the_digest_and_not_in_the_way(model_dir: Path) -> None:
    model = Deaf()
    boxes, missing, manifest = settled(model, model_dir, OnlyPeer())
    assert missing == []
    assert boxes.opaque == {TABLE: "the engine takes no word of it"}
    found, _ = EngineWeights(model, manifest.tensors, boxes, model_dir, 0).measure()
    assert found == digest_of_model_dir(model_dir, manifest)


def test_ranks_of_an_engine_ignore_together_and_count_the_tensor_once(model_dir: Path) -> None:
    group = RankThreads(2)

    def one(rank: Peers) -> tuple[int, list[str]]:
        model = Deaf(rank.rank, 2)
        boxes, missing, manifest = settled(model, model_dir, rank)
        return EngineWeights(model, manifest.tensors, boxes, model_dir, rank.rank).measure()[0], missing

    answers = [answer for answer in group.run(one) if isinstance(answer, tuple)]
    assert [missing for _, missing in answers] == [[], []]
    manifest = Manifest.from_model_dir(model_dir)
    assert total(found for found, _ in answers) == digest_of_model_dir(model_dir, manifest)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_words_of_the_engine_that_came_from_nowhere_say_that_a_name_was_not_understood(
    model_dir: Path, name: str
) -> None:
    """B066: a parameter of its own, and half of a fused one: loaded at the start, and ignored from then on."""
    model = Deaf()
    settled(model, model_dir, OnlyPeer())
    model.unheard = (TABLE, name)
    manifest = Manifest.from_model_dir(model_dir)
    boxes = AddressMap.record(model, manifest.tensors)
    assert settle(boxes, manifest.tensors, OnlyPeer(), model)[1] == sorted([name, TABLE])


def test_a_tensor_that_another_one_is_loaded_over_is_not_ignored(model_dir: Path) -> None:
    class Tied(Deaf):
        """Two names for one parameter; the second wins."""

        def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
            super().load_weights(("model.norm.weight" if "other" in name else name, tensor) for name, tensor in weights)

    weights = {**weights_of(model_dir), "model.other.weight": checkpoint(3)["model.norm.weight"]}
    _, missing, _ = settled(Tied(), save_checkpoint(weights, model_dir.parent / "tied"), OnlyPeer())
    assert missing == ["model.norm.weight", TABLE]


def test_an_engine_that_takes_little_of_the_model_holds_another_one(tmp_path: Path) -> None:
    large = {**checkpoint(), TABLE: torch.zeros(1 << 16, dtype=torch.bfloat16)}
    _, missing, _ = settled(Deaf(), save_checkpoint(large, tmp_path / "large"), OnlyPeer())
    assert missing == [TABLE]
