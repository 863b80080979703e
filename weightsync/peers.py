"""Ranks of one engine (tensor parallel) that apply a ticket together, or not at all."""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

_M64 = (1 << 64) - 1

# Any: modules of engines, which are asked only where they run already.
_TENSOR_PARALLEL: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "sglang.srt.runtime_context": lambda sglang: sglang.get_parallel().tp_group.cpu_group,
        "vllm.distributed.parallel_state": lambda vllm: vllm.get_tp_group().cpu_group,
    }
)
"""Module of an engine -> its tensor-parallel group on the CPU."""


class Peers(Protocol):
    """What the loader needs of the engine's ranks. Every method is called by all of them in the same order."""

    rank: int
    world: int

    def worst(self, code: int) -> int:
        """The largest code of any rank."""
        ...

    def sums(self, values: Sequence[int]) -> list[int]:
        """Sums over ranks, modulo 2^64, value by value."""
        ...

    def tables(self, rows: Tensor) -> list[Tensor]:
        """Every rank's [n, k] int64 table by rank; n may differ."""
        ...


class OnlyPeer:
    """An engine of one rank."""

    rank, world = 0, 1

    def worst(self, code: int) -> int:
        """Its own."""
        return code

    def sums(self, values: Sequence[int]) -> list[int]:
        """Its own."""
        return [value & _M64 for value in values]

    def tables(self, rows: Tensor) -> list[Tensor]:
        """Its own."""
        return [rows]


class GroupPeers:
    """The ranks of a process group. Only tensors travel, nothing is unpickled."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def worst(self, code: int) -> int:
        """The largest code of any rank."""
        found = torch.tensor([code], device=self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        return int(found)

    def sums(self, values: Sequence[int]) -> list[int]:
        """Sums over ranks; int64 wraps, which is what modulo 2^64 asks for."""
        signed = [value - (1 << 64) if value >= 1 << 63 else value for value in (v & _M64 for v in values)]
        found = torch.tensor(signed, dtype=torch.int64, device=self._device)
        dist.all_reduce(found, group=self._group)
        return [int(value) & _M64 for value in found]

    def tables(self, rows: Tensor) -> list[Tensor]:
        """Every rank's table, padded to the longest on the way."""
        sizes = torch.zeros(self.world, dtype=torch.int64, device=self._device)
        sizes[self.rank] = len(rows)
        dist.all_reduce(sizes, group=self._group)
        padded = torch.zeros((int(sizes.max()), rows.shape[1]), dtype=torch.int64, device=self._device)
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(found, padded, group=self._group)
        return [table[:size].cpu() for table, size in zip(found, sizes.tolist(), strict=True)]


def find_peers() -> Peers:
    """The engine's ranks: its tensor-parallel group, or the default group where another engine made one."""
    if not (dist.is_available() and dist.is_initialized()):
        return OnlyPeer()
    group = next((find(sys.modules[name]) for name, find in _TENSOR_PARALLEL.items() if name in sys.modules), None)
    if dist.get_world_size(group) == 1:
        return OnlyPeer()
    on_device = "gloo" not in dist.get_backend(group)
    return GroupPeers(group, torch.device("cuda", torch.cuda.current_device()) if on_device else torch.device("cpu"))
