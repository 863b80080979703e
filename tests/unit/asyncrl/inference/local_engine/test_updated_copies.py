"""After updates an engine computes with what a fresh one does, bit for bit, without making its copies again."""

import base64
import pickle
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.inference.local_engine import copies
from asyncrl.inference.local_engine.compute import ComputeWeights
from asyncrl.inference.local_engine.engine import Engine, EngineSettings
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.places import WORDS, memory_of
from asyncrl.inference.local_engine.products import Kind
from asyncrl.inference.local_engine.weight_updates import WeightUpdates
from tests.support.fused_model import stepped
from tests.support.local_models import make_request, save_model
from tests.unit.weightsync.test_sglang_loader import Stage, digest_in
from weightsync.buckets import BucketPlan
from weightsync.manifest import Manifest
from weightsync.preparation import GOING_ON, PREPARE, READY
from weightsync.sglang_loader import APPLIED, STAGE_DIR, STATUS
from weightsync.versions import pack

LOADER = "weightsync.sglang_loader.load"
PAYLOAD = base64.b64encode(pickle.dumps([("@weightsync", torch.zeros(1))])).decode()
"""Carries nothing: what there is to load is in the stage directory."""

WIDE: dict[str, object] = {"hidden_size": 160, "num_attention_heads": 10, "num_key_value_heads": 2}
FAMILIES: Mapping[str, tuple[str, dict[str, object]]] = {
    "qwen2, tied": ("qwen2", WIDE),
    "llama": ("llama", {**WIDE, "tie_word_embeddings": False}),
    "qwen3": ("qwen3", {"tie_word_embeddings": False}),
}
LAYOUTS: Mapping[str, tuple[torch.dtype, Kind]] = {
    "packed bfloat16": (torch.bfloat16, "packed"),
    "packed float32": (torch.float32, "packed"),
    "transposed float32": (torch.float32, "transposed"),
    "plain bfloat16": (torch.bfloat16, "plain"),
    "plain float32": (torch.float32, "plain"),
}


class Served(Stage):
    """An engine over a model directory, and the stage directory from which it is updated."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, layout: str, family: str, **overrides: object):
        self.root, self.directory = root, root / "stage"
        self.directory.mkdir()
        monkeypatch.setenv(STAGE_DIR, str(self.directory))
        self.model_dir = self.held = save_model(root / "model", family, **overrides)
        self.manifest = Manifest.from_model_dir(self.model_dir, "bfloat16")
        self.plan = BucketPlan.whole(self.manifest, 5000)
        self.layout, self.number = layout, 0
        self.engine = self.fresh(self.model_dir)
        self.updates = WeightUpdates(self.engine, (LOADER,))

    def fresh(self, model_dir: Path) -> Engine:
        dtype, kind = LAYOUTS[self.layout]
        model = LocalModel.from_dir(model_dir, torch.bfloat16)
        return Engine(model, ComputeWeights(model.weights, dtype, kind=kind), EngineSettings(context_length=128))

    def save(self, weights: dict[str, Tensor], name: str) -> Path:
        directory = shutil.copytree(self.model_dir, self.root / name)
        save_file(weights, directory / "model.safetensors", {"format": "pt"})
        return directory

    def step(self, fraction: float, *, prepared: bool = False, anchor: bool = False) -> None:
        """Changes a share of the words, and has the loader bring the engine there."""
        self.number += 1
        weights = stepped(load_file(self.held / "model.safetensors"), self.number, fraction)
        new, base = self.save(weights, f"version-{self.number}"), pack(1, self.number - 1) if self.number > 1 else 0
        ticket = self.put(new, base=None if anchor else base, target=pack(1, self.number), old=self.held)
        if prepared:
            self.prepare()
        self.updates.begin()
        self.updates.from_tensor([PAYLOAD], LOADER, flush_cache=True, version=None)
        self.updates.end()
        status = self.updates.by_name(STATUS, 6)
        assert status is not None
        assert (status[0], digest_in(status)) == (APPLIED, ticket.digest)
        self.held = new

    def prepare(self) -> None:
        assert self.updates.by_name(PREPARE, 1) == [GOING_ON]
        for thread in threading.enumerate():
            if thread.name == "weightsync-prepare":
                thread.join()
        assert self.updates.by_name(PREPARE, 1) == [READY]

    def matrices(self) -> list[Tensor]:
        """The copies themselves, of all layers."""
        return [
            copy for layer in self.engine.compute.layers for copy in (layer.qkv, layer.o, layer.gate_up, layer.down)
        ]

    def equals_a_fresh_one(self) -> None:
        fresh = self.fresh(self.held)
        requests = [[make_request(0, [1, 2, 3], 12), make_request(1, [4, 5], 12, temperature=0.0)] for _ in "ab"]
        mine, other = (one.run(asked) for one, asked in zip((self.engine, fresh), requests, strict=True))
        assert [(r.output, r.logprobs) for r in mine] == [(r.output, r.logprobs) for r in other]
        expected = bits(fresh.compute)
        for name, words in bits(self.engine.compute).items():
            assert torch.equal(words, expected[name]), name


def bits(compute: ComputeWeights) -> dict[str, Tensor]:
    """All copies, padding of packed ones included."""
    kept = {f"dense {name}": tensor for name, tensor in compute._dense.items()}
    kept |= {f"matrix {name}": tensor for name, tensor in compute._matrix.items()}
    return {name: (memory := memory_of(tensor)).view(WORDS[memory.dtype]) for name, tensor in kept.items()}


@pytest.mark.parametrize(
    ("family", "layout", "kernels"),
    [
        *(("qwen2, tied", layout, "numba") for layout in LAYOUTS),
        *((family, "packed bfloat16", "numba") for family in ("llama", "qwen3")),
        *(("llama", layout, "torch") for layout in ("packed bfloat16", "transposed float32")),
    ],
)
def test_after_updates_of_every_kind_an_engine_is_a_fresh_one(
    family: str, layout: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":
        monkeypatch.setattr(copies, "HAVE_NUMBA", False)
    served = Served(tmp_path, monkeypatch, layout, FAMILIES[family][0], **FAMILIES[family][1])
    served.step(0.02)  # records where words lie
    served.equals_a_fresh_one()
    kept = served.matrices()
    served.step(0.02)
    served.step(0.01, prepared=True)  # two without a step between them
    served.equals_a_fresh_one()
    served.step(0.02, prepared=True)
    served.equals_a_fresh_one()
    assert all(mine is before for mine, before in zip(served.matrices(), kept, strict=True)), "copies were made again"
    served.step(0.5)  # more than is worth writing one by one
    served.step(0.01)
    served.equals_a_fresh_one()
    served.step(0.02, anchor=True)
    served.equals_a_fresh_one()
    served.updates.release(None)
    served.step(0.02)
    served.updates.resume(None)
    served.equals_a_fresh_one()


def test_after_a_whole_reload_an_engine_is_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tmp_path, monkeypatch, "packed bfloat16", "qwen2", **WIDE)
    served.step(0.02)
    served.step(0.02)
    served.held = served.save(stepped(load_file(served.held / "model.safetensors"), 99, 0.3), "reloaded")
    served.updates.from_disk(str(served.held), flush_cache=True, version=None)
    served.equals_a_fresh_one()


def test_without_a_word_from_the_loader_everything_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch, "packed bfloat16", "llama", **WIDE)
    served.step(0.02)
    served.equals_a_fresh_one()
    kept = served.matrices()
    monkeypatch.setattr(LocalModel, "words_written", None)
    served.step(0.02)
    served.equals_a_fresh_one()
    assert not any(mine is before for mine, before in zip(served.matrices(), kept, strict=True))
