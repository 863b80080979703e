"""An adapter that travels alone: the engine that adds it holds what it would hold if the sums had travelled."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.config import Config, ModelConfig, RunConfig
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.run.trainer_rank import all_shards
from asyncrl.trainer.lora_weights import AdapterWeights
from asyncrl.trainer.parallel import OneRank
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.served import open_served
from buffer.versions import pack
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train, write_tiny_model
from weightsync import sglang_loader
from weightsync.adapter_receiver import AdapterReceiver
from weightsync.config import WeightsyncConfig
from weightsync.errors import LayoutMismatch
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.report import PublishReport
from weightsync.transport import open_transport


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


class Trainer:
    """A policy's weights in one of the two forms, with a log and parts of their own."""

    def __init__(self, policy: Policy, model_dir: Path, root: Path, *, alone: bool) -> None:
        self.root, self.config = root, WeightsyncConfig(directory=str(root / "parts"))
        weights = policy.weights
        assert isinstance(weights, AdapterWeights)
        as_dtype = "float32" if alone else None
        policy.weights = AdapterWeights(policy.model.module, weights.adapter, travels_as=as_dtype)
        config = Config(run=RunConfig(name="toy", dir=root), model=ModelConfig(path=model_dir))
        served = open_served(config, policy, Manifest.from_model_dir(model_dir, "bfloat16"), OneRank())
        shards = all_shards(policy, served)
        policy.weights = weights

        def in_this_form():
            policy.weights = AdapterWeights(policy.model.module, weights.adapter, travels_as=as_dtype)
            return shards()

        self.publisher = WeightPublisher(served.manifest, in_this_form, *self.connect(), self.config)
        self.publisher.claim(1)
        self.publisher.publish_origin(served.directory)

    def connect(self) -> tuple[VersionLog, object]:
        return open_log(str(self.root / "log"), "toy"), open_transport(self.config, "", "toy")

    def publish(self, number: int) -> PublishReport:
        return self.publisher.publish(pack(1, number))


class Server:
    """An engine of ours with the loader in it, and a receiver beside it."""

    def __init__(self, trainer: Trainer, model_dir: Path, name: str, kind: type[Receiver]) -> None:
        self.model = LocalModel.from_dir(model_dir, torch.bfloat16)
        self.stage_dir, self.version = trainer.root / name, 0
        self.receiver = kind(
            *trainer.connect(),
            trainer.config,
            server=name,
            incarnation="1",
            url=f"http://{name}",
            stage_dir=self.stage_dir,
            model_dir=model_dir,
        )

    def follow(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Come to head as a host would; the kinds of the tickets."""
        monkeypatch.setenv(sglang_loader.STAGE_DIR, str(self.stage_dir))
        self.receiver.stage_inspect()
        self.load(sglang_loader.FAILED)  # of the status before the first ticket: an inspection applies nothing
        kinds = []
        while (ticket := self.receiver.stage(self.version)) is not None:
            digest = self.load(sglang_loader.APPLIED)
            self.receiver.acknowledge(ticket.target, digest)
            self.version = ticket.target
            kinds.append(ticket.kind)
        return kinds

    def load(self, code: int) -> int:
        sglang_loader.load(self.model, [])
        found, _, _, high, low, _ = self.model.get_weights_by_name(sglang_loader.STATUS)
        assert found in (sglang_loader.APPLIED, code), sglang_loader.CODES[found]
        return high << 32 | low

    def bits(self) -> dict[str, np.ndarray]:
        return {name: tensor.view(torch.int16).numpy().copy() for name, tensor in self.model.named_parameters()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture
def policy(model_dir):
    return make_policy(model_dir, lora_rank=3, lora_alpha=5.0, lora_target_modules=("q_proj", "up_proj", "down_proj"))


def steps(policy: Policy, model_dir: Path, seeds: Sequence[int]) -> None:
    for seed in seeds:
        train(policy, make_batch(policy, make_groups(model_dir, 2, 3, seed=seed)))


def test_engines_of_both_forms_hold_the_same_bits(policy, model_dir, tmp_path, monkeypatch):
    forms = {
        form: Trainer(policy, model_dir, tmp_path / form, alone=form == "adapter") for form in ("merged", "adapter")
    }
    kinds = {"merged": Receiver, "adapter": AdapterReceiver}
    servers = {form: Server(trainer, model_dir, "early", kinds[form]) for form, trainer in forms.items()}
    start, taken = servers["merged"].bits(), []
    for number in range(4):
        if number:
            steps(policy, model_dir, [number])
        reports = {form: trainer.publish(number) for form, trainer in forms.items()}
        tickets = {form: server.follow(monkeypatch) for form, server in servers.items()}
        assert tickets == {"merged": ["delta"], "adapter": ["delta"]}
        bits = {form: server.bits() for form, server in servers.items()}
        assert same(bits["merged"], bits["adapter"]), number
        assert same(bits["merged"], start) == (number == 0)
        taken.append({form: report.num_changed for form, report in reports.items()})
    # At the start A alone is sent, and B, zero, is not.
    adapter = sum(parameter.numel() for parameter in policy.parameters())
    assert 0 < taken[0]["adapter"] < adapter
    assert taken[0]["merged"] == 0
    assert 0.9 * adapter < taken[3]["adapter"] <= adapter


def test_a_late_server_and_one_behind_come_to_the_same(policy, model_dir, tmp_path, monkeypatch):
    trainer = Trainer(policy, model_dir, tmp_path, alone=True)
    behind = Server(trainer, model_dir, "behind", AdapterReceiver)
    trainer.publish(0)
    behind.follow(monkeypatch)
    for number in (1, 2, 3):
        steps(policy, model_dir, [number])
        trainer.publish(number)
    late = Server(trainer, model_dir, "late", AdapterReceiver)
    assert len(behind.follow(monkeypatch)) == 1  # three versions in one step
    assert len(late.follow(monkeypatch)) == 1
    assert same(late.bits(), behind.bits())
    # One whose weights cannot be trusted asks for everything, and gets it.
    lost = Server(trainer, model_dir, "lost", AdapterReceiver)
    lost.receiver.need("a test")
    assert trainer.publisher.answer_needs()
    with torch.no_grad():
        dict(lost.model.named_parameters())["model.layers.0.mlp.down_proj.weight"].add_(1.0)
    lost.version = None
    assert lost.follow(monkeypatch) == ["anchor"]
    assert same(lost.bits(), late.bits())


def test_a_server_with_another_model_refuses_the_adapter(policy, model_dir, tmp_path):
    trainer = Trainer(policy, model_dir, tmp_path / "run", alone=True)
    trainer.publish(0)
    other = Server(trainer, write_tiny_model(tmp_path / "other", seed=1), "other", AdapterReceiver)
    with pytest.raises(LayoutMismatch, match="holds other weights than the model that the trainer's adapter is of"):
        other.receiver.stage_inspect()


def test_sides_that_do_not_agree_on_what_travels_refuse_each_other(policy, model_dir, tmp_path):
    for alone, kind, words in (
        (True, Receiver, "sends an adapter alone"),
        (False, AdapterReceiver, "set lora.sync alike"),
    ):
        trainer = Trainer(policy, model_dir, tmp_path / str(alone), alone=alone)
        trainer.publish(0)
        with pytest.raises(LayoutMismatch, match=words):
            Server(trainer, model_dir, "s", kind).receiver.stage_inspect()


def test_a_resumed_trainer_goes_on_with_what_travels(policy, model_dir, tmp_path):
    trainer = Trainer(policy, model_dir, tmp_path, alone=True)
    trainer.publish(0)
    steps(policy, model_dir, [1])
    report = trainer.publish(1)
    again = Trainer(policy, model_dir, tmp_path, alone=True)
    again.publisher.claim(2)
    same_words = again.publisher.publish(pack(2, 1))
    assert (same_words.kind, same_words.num_changed, same_words.digest) == ("delta", 0, report.digest)
