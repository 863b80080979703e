"""Parameters that wait in CPU memory, on a rank that is alone."""

import pytest
import torch

from asyncrl.config import Config, ParallelConfig, TrainerConfig
from asyncrl.trainer.parallel import OneRank, ProcessGroup, open_ranks
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train, write_tiny_model


@pytest.fixture
def alone(monkeypatch):
    """A rank without others that is a process group all the same: FSDP moves what it splits."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    ranks = open_ranks(Config(trainer=TrainerConfig(device="auto", parallel=ParallelConfig(offload=True))))
    assert isinstance(ranks, ProcessGroup)
    yield ranks
    ranks.close()


def test_one_rank_trains_from_cpu_memory_as_from_its_device(alone, tmp_path):
    """On a CPU nothing moves; the words are the same, and so they are on a GPU to its rounding."""
    model_dir = write_tiny_model(tmp_path / "model")
    groups = make_groups(model_dir, 3, 2)
    assert (alone.world, alone.place.counts, alone.meshes.offload) == (1, True, True)
    found = []
    for ranks in (OneRank(alone.device), alone):
        policy = make_policy(model_dir, ranks)
        values = train(policy, make_batch(policy, groups)).values()
        found.append((values, {shard.name: shard.tensor.cpu() for shard in policy.shards()}))
        if ranks is alone:
            assert {parameter.device.type for parameter in policy.parameters()} == {"cpu"}
            moments = policy.optimizer.adamw.state.values()
            assert {value.device.type for state in moments for value in state.values()} == {"cpu"}
    (expected, shards), (values, offloaded) = found
    assert values == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert shards.keys() == offloaded.keys()
    for name, tensor in shards.items():
        torch.testing.assert_close(tensor, offloaded[name], rtol=1e-5, atol=1e-6)
