"""A rank of four that publishes models in other arrangements: python -m tests.support.layout_rank DIRECTORY.

Its last line says for every arrangement whether the published digest is that of the whole model, cast to its dtypes.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from asyncrl.config import Config, ParallelConfig, TrainerConfig
from asyncrl.trainer.parallel import ProcessGroup, open_ranks
from buffer.versions import pack
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.transport import open_transport

Named = dict[str, Tensor]


class Net(nn.Module):
    """Rows that divide by nothing, three rows for four ranks, a tied head, a router's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6, bias=False)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight


def fsdp(net: nn.Module) -> None:
    fully_shard(net, mesh=init_device_mesh("cpu", (4,)))


def hybrid(net: nn.Module) -> None:
    fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))


def fsdp_in_tensor_parallel(net: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(net, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])


def tensor_parallel(net: nn.Module) -> None:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(net, init_device_mesh("cpu", (4,)), plan)


ARRANGEMENTS: dict[str, Callable[[nn.Module], None]] = {
    "fsdp": fsdp,
    "hybrid": hybrid,
    "fsdp in tensor parallel": fsdp_in_tensor_parallel,
    "tensor parallel": tensor_parallel,
    "replicated": lambda net: None,
}
DTYPES = {"norm.weight": torch.float32, "norm.bias": torch.float16}  # others are bfloat16


def of_every_dtype(rank: int) -> tuple[Named, Named]:
    """Tensors that are words only, cut over the ranks by rows: (whole ones, this rank's)."""
    whole = {
        "codes": torch.arange(18, dtype=torch.int8).reshape(9, 2),
        "mask": torch.arange(5) % 2 == 0,
        "scaled": torch.linspace(-3, 3, 14).to(torch.float8_e4m3fn).reshape(7, 2),
        "steps": torch.arange(6) << 40,
        "weight": torch.linspace(-1, 1, 22).to(torch.bfloat16).reshape(11, 2),
    }
    mesh, own = init_device_mesh("cpu", (4,)), {}
    for name, tensor in whole.items():
        rows = -(-len(tensor) // 4)
        local = tensor[rank * rows : (rank + 1) * rows].clone()
        own[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
    copy = torch.linspace(0, 1, 9).to(torch.bfloat16)
    return {**whole, "copy": copy}, {
        **own,
        "copy": DTensor.from_local(copy.clone(), mesh, [Replicate()], run_check=False),
    }


def step(named: Named) -> None:
    """Change every element, whichever part of a tensor is at hand."""
    with torch.no_grad():
        for tensor in named.values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if local.dtype == torch.float32:
                local.mul_(1.03).add_(0.01)
            else:
                local.view(torch.uint8).bitwise_xor_(1)


def published(directory: Path, ranks: ProcessGroup, whole: Named, named: Named, wire: dict[str, torch.dtype]) -> bool:
    """Publish `named` as 1.0 and, a step later, as 1.1 out of a capture; whether both are bit for bit what `whole` is.

    Args:
        whole: masters of the whole model, the same on every rank.
        named: this rank's part of them.
        wire: dtype of each tensor on the wire.
    """
    for name in ("before", "after"):
        if ranks.rank == 0:
            (directory / name).mkdir(parents=True)
            save_file({n: t.to(wire[n]) for n, t in whole.items()}, directory / name / "model.safetensors")
            (directory / name / "config.json").write_text("{}")
        step(whole)
    ranks.barrier()
    manifest = Manifest.from_model_dir(directory / "before")
    config = WeightsyncConfig(directory=str(directory / "parts"), bucket_words=64)
    publisher = WeightPublisher(
        manifest,
        lambda: shards_of(named.items(), manifest.dtypes),
        open_log(str(directory / "log"), "toy"),
        open_transport(config, "", "toy"),
        config,
        ranks.channel(60.0),
    )
    publisher.claim(1)
    publisher.publish_origin(directory / "before")
    first = publisher.publish(pack(1, 0))
    step(named)
    staged = publisher.capture()
    step(named)  # the next step is not in what was captured
    second = publisher.publish(pack(1, 1), staged)
    expected = [digest_of_model_dir(directory / name, manifest) for name in ("before", "after")]
    return [first.digest, second.digest] == expected and (first.num_changed, second.kind) == (0, "delta")


def main(directory: Path, ranks: ProcessGroup) -> dict[str, bool]:
    """Every arrangement's answer."""
    found = {}
    for name, arrange in ARRANGEMENTS.items():
        torch.manual_seed(0)
        net = Net()
        whole = {n: p.detach().clone() for n, p in net.named_parameters()}
        arrange(net)
        wire = {n: DTYPES.get(n, torch.bfloat16) for n in whole}
        found[name] = published(directory / name, ranks, whole, dict(net.named_parameters()), wire)
    whole, own = of_every_dtype(ranks.rank)
    found["every dtype"] = published(directory / "dtypes", ranks, whole, own, {n: t.dtype for n, t in whole.items()})
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    group = open_ranks(Config(trainer=TrainerConfig(device="cpu", parallel=ParallelConfig(fsdp=4))))
    assert isinstance(group, ProcessGroup)
    print(json.dumps(main(Path(sys.argv[1]), group)))
    group.close()
