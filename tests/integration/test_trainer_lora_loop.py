"""The training loop with an adapter in place of all weights, in both forms in which it travels."""

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.errors import CheckpointError
from buffer.versions import pack
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer
from weightsync.adapter_layout import BASE, UP
from weightsync.digest import digest_of_model_dir
from weightsync.manifest import Manifest

LORA = {"rank": 4, "alpha": 8.0}
IN_ORDER = {"limit": 0, "order": "ordinal"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def lora_config(directory, model_dir, steps, **lora):
    return make_config(directory, model_dir, staleness=IN_ORDER, trainer={"steps": steps}, lora={**LORA, **lora})


def go(config, buffer=None, *, resume=False):
    run = start_trainer(config, buffer or make_buffer(config))
    with rollout_for(run).running():
        run.go(resume=resume)
    return run


def adapter(run):
    return {name: parameter.detach().clone() for name, parameter in run.parts.policy.named_parameters().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def metrics_of(run, step):
    return next(values for at, _, values in run.sink.reproducible() if at == step and "actor/pg_loss" in values)


def test_a_resumed_run_ends_with_the_adapter_of_an_uninterrupted_one_however_it_travels(model_dir, tmp_path):
    straight = go(lora_config(tmp_path / "straight", model_dir, 4))
    head = straight.parts.log.head()
    manifest = Manifest.from_model_dir(tmp_path / "straight" / "export", "bfloat16")
    assert digest_of_model_dir(tmp_path / "straight" / "export", manifest) == head.digest
    first = lora_config(tmp_path / "cut", model_dir, 2, sync="adapter")
    buffer = make_buffer(first)
    go(first, buffer)
    resumed = go(lora_config(tmp_path / "cut", model_dir, 4, sync="adapter"), buffer, resume=True)
    assert same(adapter(straight), adapter(resumed))
    for step in (3, 4):
        one, other = metrics_of(straight, step), metrics_of(resumed, step)
        assert one["actor/grad_norm"] == other["actor/grad_norm"] > 0
    travelled = resumed.parts.log.head()
    assert travelled.version == pack(2, 4)
    assert travelled.num_words == sum(p.numel() for p in resumed.parts.policy.parameters()) + 2
    assert (tmp_path / "cut" / "export" / "model.safetensors").read_bytes() == (
        tmp_path / "straight" / "export" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_travels_is_a_and_scaled_b(model_dir, tmp_path, dtype):
    run = go(lora_config(tmp_path, model_dir, 1, sync="adapter", wire_dtype=dtype))
    snapshot = run.parts.publisher._held.snapshot
    (zeros,) = load_file(run.parts.origin_dir / "model.safetensors")[BASE].tolist()
    assert zeros == digest_of_model_dir(model_dir, Manifest.from_model_dir(model_dir))
    assert snapshot is not None
    scaled = {
        name: value * (2.0 if name.endswith(UP) else 1.0) for name, value in adapter(run).items()
    }  # alpha / rank = 2
    for bucket in snapshot.buckets:
        if bucket.segments[0].tensor == BASE and len(bucket.segments) == 1:
            continue
        at, words = 0, torch.from_numpy(snapshot.words[bucket.id].copy()).view(getattr(torch, dtype))
        for segment in bucket.segments:
            if segment.tensor != BASE:
                sent = words[at : at + segment.words]
                expected = scaled[segment.tensor].reshape(-1)[segment.start : segment.end]
                assert torch.equal(sent, expected.to(getattr(torch, dtype)))
            at += segment.words


def test_another_rank_does_not_go_on(model_dir, tmp_path):
    first = lora_config(tmp_path, model_dir, 2)
    buffer = make_buffer(first)
    go(first, buffer)
    other = start_trainer(lora_config(tmp_path, model_dir, 4, rank=2), buffer)
    with rollout_for(other).running(), pytest.raises(CheckpointError, match=r"lora\.rank = 4, this run has 2"):
        other.go(resume=True)
