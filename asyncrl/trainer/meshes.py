"""The meshes of ranks: which share parameters, which share matrix products, which share the tokens of a row.

rank = ((replica * fsdp + shard) * cp + part) * tp + slice: ranks that share a matrix product are neighbours.
"""

from dataclasses import dataclass
from typing import Protocol

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

FSDP, REPLICATE, CP, TP = "fsdp", "replicate", "cp", "tp"


class Sizes(Protocol):
    """ParallelConfig: how many ranks each mesh has."""

    @property
    def replicate(self) -> int: ...
    @property
    def fsdp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def tp(self) -> int: ...


@dataclass(frozen=True)
class Meshes:
    """This rank's neighbours.

    Attributes:
        shards: ranks that FSDP splits parameters over and averages gradients over: fsdp x cp of them, "fsdp"; with
            copies two dimensions, "replicate" and "fsdp".
        tp: ranks that share every matrix product, or None.
        cp: ranks that share the tokens of a row, or None.
    """

    shards: DeviceMesh
    tp: DeviceMesh | None = None
    cp: DeviceMesh | None = None


@dataclass(frozen=True)
class Place:
    """Which groups a rank trains, and what its numbers count for.

    Attributes:
        data_rank: index among the ranks that train different groups. Ranks with one index train the same groups, build
            the same batch, and see the same logprobs.
        data_world: how many there are of those.
        averaged: ranks whose gradients are averaged.
        counts: whether this rank's sums count: it is the first of those with its index.
    """

    data_rank: int = 0
    data_world: int = 1
    averaged: int = 1
    counts: bool = True


def place_of(rank: int, sizes: Sizes) -> Place:
    """The place of a rank."""
    alike = sizes.cp * sizes.tp
    data_world = sizes.replicate * sizes.fsdp
    return Place(rank // alike, data_world, data_world * sizes.cp, rank % alike == 0)


def open_meshes(device: str, sizes: Sizes) -> Meshes:
    """The meshes of the process group's ranks. A collective of all ranks.

    Args:
        device: type of the device, "cpu" or "cuda".
    """
    # One mesh for all that a parameter is split over: its shards and slices have to know of each other.
    whole = {REPLICATE: sizes.replicate, FSDP: sizes.fsdp * sizes.cp, TP: sizes.tp}
    split = {name: size for name, size in whole.items() if size > 1 or name == FSDP}
    parameters = init_device_mesh(device, tuple(split.values()), mesh_dim_names=tuple(split))
    shards = parameters[REPLICATE, FSDP] if REPLICATE in split else parameters[FSDP]
    rows = None
    if sizes.cp > 1:
        shape = (sizes.replicate * sizes.fsdp, sizes.cp, sizes.tp)
        rows = init_device_mesh(device, shape, mesh_dim_names=("data", CP, TP))[CP]
    return Meshes(shards, parameters[TP] if TP in split else None, rows)
