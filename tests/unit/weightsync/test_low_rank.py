"""An engine that gets an adapter alone: its ranks hold slices of the sums, and another model's adapter is refused."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.fused_model import HIDDEN, INNER, FusedModel, bits, checkpoint, engine_of, same_bits, save_checkpoint
from tests.support.rank_threads import RankThread, RankThreads
from weightsync import sglang_loader as L
from weightsync.adapter_layout import BASE, DOWN, UP, base_of
from weightsync.adapter_origin import origin_of, write_origin
from weightsync.adapter_receiver import AdapterReceiver
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.errors import LayoutMismatch, ModelDirError
from weightsync.log import open_log
from weightsync.low_rank import AdaptedModel, add_product
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.transport import open_transport
from weightsync.versions import pack

RANK = 3
LAYERS = {"model.layers.0.self_attn.o_proj": (HIDDEN, 16), "model.layers.1.mlp.gate_proj": (INNER, HIDDEN)}


class Run:
    """A model's directory, an adapter's origin beside it, and a publisher of adapters."""

    def __init__(self, root: Path, dtype: str) -> None:
        self.root, self.base = root, save_checkpoint(checkpoint(), root / "model")
        shapes = {}
        for name, (rows, columns) in LAYERS.items():
            shapes |= {name + DOWN: (RANK, columns), name + UP: (rows, RANK)}
        digest = digest_of_model_dir(self.base, Manifest.from_model_dir(self.base))
        self.origin = write_origin(root / "origin", shapes, dtype, self.base, digest)
        self.tensors = load_file(self.origin / "model.safetensors")
        self.config = WeightsyncConfig(directory=str(root / "parts"), bucket_words=64)
        manifest = Manifest.from_model_dir(self.origin)
        self.publisher = WeightPublisher(
            manifest, lambda: shards_of(self.tensors.items(), {}), *self.connect(), self.config
        )
        self.publisher.publish_origin(self.origin)
        self.publisher.claim(1)

    def connect(self):
        return open_log(str(self.root / "log"), "toy"), open_transport(self.config, "", "toy")

    def step(self, number: int) -> None:
        """Another adapter, as version 1.`number`."""
        generator = torch.Generator().manual_seed(number)
        for name, tensor in self.tensors.items():
            if name != BASE:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
        self.publisher.publish(pack(1, number))

    def receiver(self) -> AdapterReceiver:
        places = {"url": "http://s", "stage_dir": self.root / "stage", "model_dir": self.base}
        return AdapterReceiver(*self.connect(), self.config, server="s", incarnation="1", **places)

    def merged(self, name: str) -> Path:
        """A directory of the model with the adapter added."""
        weights = checkpoint()
        for layer in LAYERS:
            weight = weights[f"{layer}.weight"]
            weights[f"{layer}.weight"] = add_product(weight, self.tensors[layer + UP], self.tensors[layer + DOWN]).to(
                torch.bfloat16
            )
        return save_checkpoint(weights, self.root / name)


@pytest.fixture(params=["float32", "bfloat16"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv(L.STAGE_DIR, str(tmp_path / "stage"))
    monkeypatch.delenv(L.MODEL_VERSION, raising=False)
    return Run(tmp_path, request.param)


def load(model: FusedModel) -> list[int]:
    L.load(model, [])
    status: list[int] = model.get_weights_by_name(L.STATUS)
    return status


@pytest.mark.parametrize("world", [1, 2])
def test_every_rank_of_an_engine_holds_its_slice_of_the_sums(run: Run, monkeypatch, world: int) -> None:
    group, here = RankThreads(world), threading.local()
    monkeypatch.setattr(L, "find_peers", lambda: here.rank)
    models = [engine_of(run.base, rank, world) for rank in range(world)]

    def one(rank: RankThread) -> list[int]:
        here.rank = rank
        return load(models[rank.rank])

    receiver, held = run.receiver(), 0
    for number in (1, 2):
        run.step(number)
        ticket = receiver.stage(held)
        assert ticket is not None
        statuses = group.run(one)
        assert [status[:3] for status in statuses] == [[L.APPLIED, 1, number]] * world, statuses
        receiver.acknowledge(ticket.target, statuses[0][3] << 32 | statuses[0][4])
        held, merged = ticket.target, run.merged(f"merged{number}")
        assert all(same_bits(bits(model), bits(engine_of(merged, model.rank, world))) for model in models)


def test_an_adapter_of_another_model_is_refused_before_a_weight_is_written(run: Run) -> None:
    model = AdaptedModel(engine_of(run.base), run.origin)
    before = bits(model._model)
    run.step(1)
    run.tensors[BASE] = torch.zeros_like(run.tensors[BASE])
    with pytest.raises(ValueError, match="the adapter is of another model than"):
        model.load_weights(iter(run.tensors.items()))
    assert same_bits(bits(model._model), before)


def test_half_of_a_layers_adapter_meets_the_other_half_as_it_was(run: Run) -> None:
    model, layer = AdaptedModel(engine_of(run.base), run.origin), "model.layers.0.self_attn.o_proj"
    before = bits(model._model)
    run.step(1)
    model.load_weights(iter([(layer + DOWN, run.tensors[layer + DOWN])]))
    assert same_bits(bits(model._model), before)  # B is zero still
    model.load_weights(iter([(layer + UP, run.tensors[layer + UP])]))
    sent = run.tensors
    run.tensors = {name: value if name.startswith(layer) else torch.zeros_like(value) for name, value in sent.items()}
    assert same_bits(bits(model._model), bits(engine_of(run.merged("one"))))


def test_a_layout_that_the_model_does_not_have_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    for shapes, words in (
        ({"model.norm" + DOWN: (RANK, HIDDEN)}, r"model\.norm\.weight \[16\]"),
        ({"model.layers.9.mlp.up_proj" + UP: (INNER, RANK)}, "no such layer"),
        ({"model.layers.0.mlp.up_proj" + UP: (INNER + 1, RANK)}, r"up_proj\.weight \[24, 16\]"),
        ({"model.embed_tokens.weight": (4, 4)}, "no such layer"),
    ):
        other = Manifest.from_model_dir(write_origin(tmp_path / "other", shapes, "float32", run.base, 7))
        with pytest.raises(LayoutMismatch, match=words):
            origin_of(other, run.base, tmp_path / "made")
    made = origin_of(Manifest.from_model_dir(run.origin), run.base, tmp_path / "made")
    assert base_of(made) == run.base.resolve()
    words = [np.fromfile(directory / "model.safetensors", np.uint8) for directory in (made, run.origin)]
    assert np.array_equal(*words)


def test_a_directory_that_is_no_origin_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelDirError, match="does not say which model it is an adapter of"):
        base_of(save_checkpoint(checkpoint(), tmp_path / "model"))
