"""Who trains what, and how a process learns its place."""

import pytest
import torch

from asyncrl.config import Config, ParallelConfig, TrainerConfig
from asyncrl.errors import ConfigError, PreflightError
from asyncrl.trainer.parallel import OneRank, assign, mini_batches, open_ranks


def test_groups_are_balanced_by_tokens_and_ordered_within_a_rank():
    # 100 | 80, then 10s to whoever has less: 80 + 10 + 10 | 100 + 10
    assert assign({0: 10, 1: 100, 2: 10, 3: 80, 4: 10}, 2) == [[1, 4], [0, 2, 3]]


def test_assignment_does_not_depend_on_the_order_of_arrival():
    assert assign({3: 5, 1: 5, 2: 5}, 2) == assign({1: 5, 2: 5, 3: 5}, 2)


def test_every_rank_gets_a_group_when_there_are_enough():
    assert all(assign(dict.fromkeys(range(4), 1), 4))


def test_one_rank_takes_all():
    assert assign({5: 1, 3: 9}, 1) == [[3, 5]]


def test_mini_batches_are_even_whole_and_in_order():
    assert mini_batches([4, 1, 3, 2, 0], 2) == [[0, 1, 2], [3, 4]]
    assert mini_batches([1, 2], 5) == [[1], [2]]
    assert mini_batches([], 3) == []


def test_a_process_without_rank_variables_is_the_only_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    ranks = open_ranks(Config())
    assert isinstance(ranks, OneRank)
    assert (ranks.rank, ranks.world, ranks.meshes) == (0, 1, None)
    assert ranks.gather(b"x") == [b"x"]
    assert ranks.broadcast(b"y") == b"y"
    values = torch.ones(2, dtype=torch.float64)
    assert ranks.total(values) is values


def test_several_ranks_without_a_meeting_point_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(PreflightError, match="MASTER_ADDR is not set"):
        open_ranks(Config(trainer=TrainerConfig(device="cpu")))


def test_another_number_of_ranks_than_the_config_makes_is_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    parallel = ParallelConfig(fsdp=2, tp=2)
    with pytest.raises(PreflightError, match=r"WORLD_SIZE = 2, but trainer\.parallel \(fsdp 2 x tp 2\) makes 4 ranks"):
        open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=parallel)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_a_device_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.device = cuda, but rank 0 .* has no device"):
        open_ranks(Config(trainer=TrainerConfig(device="cuda")))
