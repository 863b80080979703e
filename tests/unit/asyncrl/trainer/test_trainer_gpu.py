"""The same step, checkpoint and shards on a CUDA device as on the CPU."""

import pytest
import torch

from asyncrl.config import CheckpointConfig
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.parallel import OneRank
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_a_step_on_the_device_is_that_of_the_cpu_and_survives_a_checkpoint(model_dir, tmp_path):
    groups = make_groups(model_dir, 4, 4)
    settings = {"ppo_mini_batches": 2, "ppo_epochs": 2, "micro_batch_tokens": 40, "algorithm_kl_coef": 0.1}
    cpu, gpu = make_policy(model_dir, **settings), make_policy(model_dir, OneRank(torch.device("cuda")), **settings)
    expected = renamed(train(cpu, make_batch(cpu, groups, 2)).values())
    found = renamed(train(gpu, make_batch(gpu, groups, 2)).values())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-3, rel=1e-2), name
    store = Checkpoints(tmp_path, CheckpointConfig())
    store.save(CheckpointName(1, 1, 1), gpu, {"optimizer_steps": gpu.optimizer_steps}, OneRank())
    store.load(store.newest(), cpu)
    for name, parameter in cpu.named_parameters().items():
        assert torch.equal(parameter, gpu.named_parameters()[name].cpu()), name
    assert all(shard.tensor.device.type == "cuda" for shard in gpu.shards())


def test_a_copy_of_the_devices_state_is_pinned_and_stays_as_it_was(model_dir, tmp_path):
    gpu = make_policy(model_dir, OneRank(torch.device("cuda")))
    train(gpu, make_batch(gpu, make_groups(model_dir, 2, 3)))
    store = Checkpoints(tmp_path, CheckpointConfig())
    before = {name: parameter.detach().cpu() for name, parameter in gpu.named_parameters().items()}
    copied = store.copy(gpu)
    assert all(piece.tensor.is_pinned() for piece in copied if piece.name.startswith(("weights/", "exp_avg")))
    train(gpu, make_batch(gpu, make_groups(model_dir, 2, 3, seed=1)))
    state = {"optimizer_steps": 1}
    store.save(CheckpointName(1, 1, 1), gpu, state, OneRank(), copied=copied)
    store.load(store.newest(), gpu)
    for name, parameter in gpu.named_parameters().items():
        assert torch.equal(parameter.cpu(), before[name]), name
