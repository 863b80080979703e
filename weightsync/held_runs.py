"""Which runs of a whole tensor a rank holds of it: the placements of a DTensor, as contiguous runs of flat elements."""

import math
from collections.abc import Sequence

import numpy as np
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

Run = tuple[int, int]
"""(start, end) of positions along one dimension, or (start, count) of flat elements where that is said."""


def is_sharded_or_replicated(placements: Sequence[Placement]) -> bool:
    """Whether the local tensor is a part of the whole one, and no summand of it."""
    return all(type(placement) in (Shard, _StridedShard, Replicate) for placement in placements)


def held(parameter: DTensor) -> list[list[Run]]:
    """For each dimension the runs of positions that this rank holds, ascending; the local tensor is their product."""
    mesh = parameter.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return [[] for _ in parameter.shape]
    return cut(tuple(parameter.shape), tuple(parameter.placements), tuple(mesh.shape), tuple(coordinate))


def cut(
    shape: Sequence[int], placements: Sequence[Placement], mesh: Sequence[int], coordinate: Sequence[int]
) -> list[list[Run]]:
    """As `held`, of any rank.

    Every mesh dimension in turn cuts what the ones before left, in chunks of which the first ones are the largest
    (torch.chunk: the last may be short or empty). A strided shard says that the mesh dimensions after it, which cut
    the same tensor dimension into as many pieces as its factor, cut first: FSDP inside tensor parallel.

    Args:
        shape: of the whole tensor.
        mesh, coordinate: sizes of the mesh, and the rank's place in it.
    """
    runs: list[list[Run]] = [[(0, size)] if size else [] for size in shape]
    for dim in range(len(shape)):
        cuts = [i for i, placement in enumerate(placements) if not isinstance(placement, Replicate)]
        order = _order([i for i in cuts if placements[i].dim == dim], placements, mesh)  # type: ignore[attr-defined]  # Replicate alone has no dim
        for i, factor in order:
            runs[dim] = _piece(runs[dim], factor, mesh[i], coordinate[i])
    return runs


def flat_runs(whole: Sequence[int], held: Sequence[Sequence[Run]]) -> list[Run]:
    """(start, count) of the contiguous runs of flat elements of the product of `held`, in its row-major order.

    Args:
        whole: shape of the tensor.
        held: for each dimension the runs of positions, ascending and apart.
    """
    if not all(held):
        return []
    # Trailing dimensions that are held whole belong to the run; so do the runs of the first one that is cut.
    split = len(whole)
    while split > 0 and list(held[split - 1]) == [(0, whole[split - 1])]:
        split -= 1
    outer, inner = max(0, split - 1), math.prod(whole[split:])
    starts = np.zeros(1, np.int64)
    for dim in range(outer):
        stride = math.prod(whole[dim + 1 :])
        positions = np.concatenate([np.arange(low, high) for low, high in held[dim]])
        starts = (starts[:, None] + positions * stride).reshape(-1)
    last = held[outer] if split else [(0, 1)]
    return [(int(start) + low * inner, (high - low) * inner) for start in starts for low, high in last]


def _order(dims: list[int], placements: Sequence[Placement], mesh: Sequence[int]) -> list[tuple[int, int]]:
    """(mesh dimension, factor of a stride that is left) in the order in which they cut one tensor dimension."""
    order: list[tuple[int, int]] = []
    for i in reversed(dims):
        later = math.prod(mesh[j] for j, _ in order)
        factor = int(getattr(placements[i], "split_factor", 1))
        if factor == later and factor > 1:
            order.append((i, 1))
        else:
            order.insert(0, (i, factor))
    return order


def _piece(runs: list[Run], factor: int, count: int, index: int) -> list[Run]:
    """Of what is held: chunk `index` of `count`, out of each of `factor` chunks."""
    found: list[Run] = []
    for i in range(factor):
        for low, high in _chunk(_chunk(runs, factor, i), count, index):
            if found and found[-1][1] == low:
                low = found.pop()[0]
            found.append((low, high))
    return found


def _chunk(runs: list[Run], count: int, index: int) -> list[Run]:
    size = -(-sum(high - low for low, high in runs) // count)
    begin, end, at, found = index * size, (index + 1) * size, 0, []
    for low, high in runs:
        first, last = max(begin - at, 0), min(end - at, high - low)
        if first < last:
            found.append((low + first, low + last))
        at += high - low
    return found
