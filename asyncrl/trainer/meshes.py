"""The meshes of ranks: which share parameters, which share matrix products, which share the tokens of a row.

rank = ((replica * fsdp + shard) * cp + part) * tp + slice: ranks that share a matrix product are neighbours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

FSDP, REPLICATE, CP, TP = "fsdp", "replicate", "cp", "tp"


class Sizes(Protocol):
    """The part of ParallelConfig that says how many ranks each mesh has, and where parameters are."""

    @property
    def replicate(self) -> int: ...
    @property
    def fsdp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def offload(self) -> bool: ...


@dataclass(frozen=True)
class Meshes:
    """This rank's neighbours.

    Attributes:
        shards: ranks that FSDP splits parameters over and averages gradients over: fsdp x cp of them, "fsdp"; with
            copies two dimensions, "replicate" and "fsdp".
        tp: ranks that share every matrix product, or None.
        cp: ranks that share the tokens of a row, or None.
        offload: parameters, gradients and what an optimizer makes of them stay in CPU memory.
    """

    shards: DeviceMesh
    tp: DeviceMesh | None = None
    cp: DeviceMesh | None = None
    offload: bool = False


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
    """The meshes of the first ranks of the process group, as many as `sizes` make.

    A collective of all its ranks, also of those that are not among them and get nothing to use.

    Args:
        device: type of the device, "cpu" or "cuda".
    """
    # One mesh for all that a parameter is split over: its shards and slices have to know of each other.
    whole = {REPLICATE: sizes.replicate, FSDP: sizes.fsdp * sizes.cp, TP: sizes.tp}
    split = {name: size for name, size in whole.items() if size > 1 or name == FSDP}
    parameters = _mesh(device, split)
    by_row = {"data": sizes.replicate * sizes.fsdp, CP: sizes.cp, TP: sizes.tp}
    rows = _mesh(device, by_row) if sizes.cp > 1 else None
    if parameters.get_coordinate() is None:
        return Meshes(parameters)
    shards = parameters[REPLICATE, FSDP] if REPLICATE in split else parameters[FSDP]
    slices = parameters[TP] if TP in split else None
    return Meshes(shards, slices, rows[CP] if rows is not None else None, sizes.offload)


def is_first_holder(tensor: Tensor, meshes: Meshes | None) -> bool:
    """Whether this rank is the first of those that hold the same part of a parameter: copies are written once."""
    if meshes is None:
        return True
    along: dict[str, int] = {}
    for mesh in (meshes.shards, meshes.tp):
        if mesh is not None:
            along |= dict(zip(_names(mesh), mesh.get_coordinate() or (), strict=True))
    if isinstance(tensor, DTensor):
        for name, placement in zip(_names(tensor.device_mesh), tensor.placements, strict=True):
            if not isinstance(placement, Replicate):
                del along[name]
    return not any(along.values())


def _mesh(device: str, sizes: Mapping[str, int]) -> DeviceMesh:
    ranks = torch.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(sizes))


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    assert mesh.mesh_dim_names is not None
    return mesh.mesh_dim_names
