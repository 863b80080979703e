"""Which runs a rank holds: torch's own cuts, in any order of mesh dimensions, and tensors beyond 2^31 elements."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from weightsync.buckets import BucketPlan
from weightsync.diff_numpy import digest_at as slow_digest_at
from weightsync.digest import digest_at
from weightsync.errors import ShardError
from weightsync.held_runs import cut, flat_runs, is_sharded_or_replicated
from weightsync.layout import Segment, address_table
from weightsync.manifest import Manifest
from weightsync.shard import shards_of


def chunk(index: torch.Tensor, count: int, number: int) -> torch.Tensor:
    chunks = index.chunk(count) if len(index) else ()
    return chunks[number] if number < len(chunks) else index[:0]


def positions(runs: list[tuple[int, int]]) -> list[int]:
    return [position for low, high in runs for position in range(low, high)]


SIZES = st.integers(0, 23)
COUNTS = st.integers(1, 4)


@given(data=st.data(), size=SIZES, first=COUNTS, second=COUNTS)
def test_two_cuts_of_one_dimension_follow_the_order_of_the_mesh(
    data: st.DataObject, size: int, first: int, second: int
) -> None:
    a, b = data.draw(st.integers(0, first - 1)), data.draw(st.integers(0, second - 1))
    (found,) = cut((size,), (Shard(0), Shard(0)), (first, second), (a, b))
    assert positions(found) == chunk(chunk(torch.arange(size), first, a), second, b).tolist()


@given(data=st.data(), size=SIZES, fsdp=COUNTS, tensor=st.integers(2, 4), rows=st.booleans())
def test_fsdp_inside_tensor_parallel_cuts_what_tensor_parallel_left(
    data: st.DataObject, size: int, fsdp: int, tensor: int, rows: bool
) -> None:
    """Rows: both cut one dimension, and the strided shard says who was first. Columns: one dimension each."""
    a, b = data.draw(st.integers(0, fsdp - 1)), data.draw(st.integers(0, tensor - 1))
    if rows:
        found, columns = cut((size, 5), (_StridedShard(0, split_factor=tensor), Shard(0)), (fsdp, tensor), (a, b))
        assert positions(columns) == list(range(5))
        assert positions(found) == chunk(chunk(torch.arange(size), tensor, b), fsdp, a).tolist()
        return
    found, columns = cut((size, 5), (Shard(0), Shard(1)), (fsdp, tensor), (a, b))
    assert positions(found) == chunk(torch.arange(size), fsdp, a).tolist()
    assert positions(columns) == chunk(torch.arange(5), tensor, b).tolist()


@given(data=st.data(), size=st.integers(1, 23), count=COUNTS, factor=st.integers(2, 4))
def test_a_strided_shard_alone_takes_a_chunk_of_each_part(
    data: st.DataObject, size: int, count: int, factor: int
) -> None:
    number = data.draw(st.integers(0, count - 1))
    placement = _StridedShard(0, split_factor=factor)
    (found,) = cut((size,), (placement,), (count,), (number,))
    expected, _ = placement._split_tensor(torch.arange(size), count, with_padding=False)
    assert positions(found) == expected[number].tolist()


@given(data=st.data(), whole=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_runs_of_several_pieces_are_the_words_of_the_local_tensor_in_order(
    data: st.DataObject, whole: list[int]
) -> None:
    chosen = [sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))) for size in whole]
    held = []
    for dim in chosen:
        runs: list[tuple[int, int]] = []
        for position in dim:
            if runs and runs[-1][1] == position:
                runs[-1] = (runs[-1][0], position + 1)
            else:
                runs.append((position, position + 1))
        held.append(runs)
    index = np.arange(int(np.prod(whole))).reshape(whole)
    runs = flat_runs(whole, held)
    assert [word for start, count in runs for word in range(start, start + count)] == index[np.ix_(*chosen)].reshape(
        -1
    ).tolist()


BIG = (70_000, 70_000)  # 4.9 * 10^9 elements


def test_runs_and_addresses_are_exact_beyond_two_to_the_31() -> None:
    rows, columns = cut(BIG, (Shard(0), Replicate()), (8, 2), (7, 1))
    assert flat_runs(BIG, [rows, columns]) == [(61_250 * 70_000, 8_750 * 70_000)]
    runs = flat_runs(BIG, cut(BIG, (Shard(1),), (8,), (7,)))
    assert runs[-1] == (69_999 * 70_000 + 61_250, 8_750)
    assert cut((3 << 31,), (Shard(0),), (2,), (1,)) == [[(3 << 30, 3 << 31)]]


def test_a_plan_of_a_tensor_beyond_two_to_the_31_cuts_it_and_reads_back() -> None:
    manifest = Manifest.of([("big", "float32", BIG), ("next", "bfloat16", (4,))])
    half = 2_450_000_000
    shards = [[Segment("big", 0, half)], [Segment("big", half, half), Segment("next", 0, 4)]]
    plan = BucketPlan.build(manifest, shards, (1 << 31) - 1)
    assert sum(bucket.num_words for bucket in plan.buckets) == 2 * half + 4
    assert all(bucket.num_words < 1 << 31 for bucket in plan.buckets)
    assert BucketPlan.from_bytes(plan.to_bytes(), manifest) == plan
    last = plan.of_rank(1)[-1]
    assert last.segments == (Segment("next", 0, 4),)
    assert plan.table(last).bases.tolist() == [4 * half]
    table = address_table([Segment("big", half + 7, 9)], manifest.by_name)
    assert (table.bases + 3 * 2).tolist() == [2 * (half + 10)]
    addresses, words = np.array([4 * half, (1 << 48) - 2]), np.array([5, 6], np.uint32)
    assert digest_at(addresses, words) == slow_digest_at(addresses, words)


def test_a_sum_over_ranks_is_no_shard() -> None:
    from torch.distributed.tensor import Partial

    assert is_sharded_or_replicated((Shard(0), Replicate(), _StridedShard(0, split_factor=2)))
    assert not is_sharded_or_replicated((Shard(0), Partial()))


@pytest.mark.parametrize("wire", ["float8_e4m3fn", "float64", "int8", "int32"])
def test_a_cast_that_is_more_than_rounding_is_refused(wire: str) -> None:
    with pytest.raises(ShardError, match=r"tensor w is float32 in the trainer and .* on the wire"):
        shards_of([("w", torch.ones(3))], {"w": wire})
    with pytest.raises(ShardError, match="tensor w is int64 in the trainer"):
        shards_of([("w", torch.ones(3, dtype=torch.int64))], {"w": "bfloat16"})
