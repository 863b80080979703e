"""The trainer's parameters as words of the model: casts, ties, pieces of any arrangement of ranks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.weights import manifest_of, random_model, save_model
from weightsync.buckets import BucketPlan
from weightsync.errors import ShardError
from weightsync.held_runs import flat_runs
from weightsync.layout import Bucket, Segment
from weightsync.manifest import Manifest
from weightsync.shard import LocalShard, ShardWords, shards_of, untrained_shards


def segments_of(shards: list[LocalShard]) -> dict[str, list[tuple[int, int]]]:
    return {shard.name: [(s.start, s.words) for s in shard.segments] for shard in shards}


def test_masters_are_cast_before_anything_is_compared() -> None:
    """B065: fp32 1.0 and 1.001 are one word in bfloat16."""
    one, other = ([("w", torch.tensor([value], dtype=torch.float32))] for value in (1.0, 1.001))
    words = [
        ShardWords(shards_of(w, "bfloat16")).of(Bucket(0, 0, 2, (Segment("w", 0, 1),))).tolist() for w in (one, other)
    ]
    assert words[0] == words[1] == [0x3F80]


def test_what_is_not_a_float_keeps_its_dtype_and_eight_bytes_are_two_words() -> None:
    shards = shards_of([("a", torch.arange(3)), ("b", torch.ones(2, dtype=torch.bool))], "bfloat16")
    assert [shard.tensor.dtype for shard in shards] == [torch.int64, torch.bool]
    assert segments_of(shards) == {"a": [(0, 6)], "b": [(0, 2)]}
    assert ShardWords(shards).of(Bucket(0, 0, 4, (Segment("a", 2, 3),))).tolist() == [1, 0, 2]


def test_tied_parameters_are_one_shard_under_their_first_name() -> None:
    embed = nn.Embedding(4, 2)
    head = nn.Linear(2, 4, bias=False)
    head.weight = embed.weight
    named = [("embed.weight", embed.weight), ("lm_head.weight", head.weight), ("other", torch.ones(4, 2))]
    assert list(segments_of(shards_of(named, "bfloat16"))) == ["embed.weight", "other"]


def test_what_the_trainer_does_not_hold_is_listed_from_the_directory_as_it_lies_there(tmp_path: Path) -> None:
    manifest = manifest_of()
    model = random_model(manifest, 3)
    save_model(tmp_path, manifest, model)
    held = {"model.embed_tokens.weight", "model.layers.0.norm.weight"}
    rest = untrained_shards(tmp_path, manifest, held)
    assert {shard.name for shard in rest} == {"model.layers.0.proj.weight", "model.steps", "model.codes"}
    words = ShardWords(rest)
    for shard in rest:
        spec = manifest.by_name[shard.name]
        assert shard.tensor.shape == spec.shape
        assert np.array_equal(words.of(Bucket(0, 0, spec.width, shard.segments)), model[shard.name])


def test_a_tied_head_of_another_stage_is_not_sent_and_never_taken_for_untrained(tmp_path: Path) -> None:
    manifest = Manifest.of([("embed", "bfloat16", (4, 2))], [("head", "embed")])
    both = [[Segment("embed", 0, 8)], [Segment("head", 0, 8)]]
    assert [bucket.segments for bucket in BucketPlan.build(manifest, both, 64).buckets] == [(Segment("embed", 0, 8),)]
    save_model(tmp_path, manifest, random_model(manifest))
    with pytest.raises(ShardError, match="List the tensor as embed"):
        untrained_shards(tmp_path, manifest, {"head"})
    assert untrained_shards(tmp_path, manifest, {"head", "embed"}) == []


def test_a_dtype_that_the_format_does_not_carry_is_refused_by_name() -> None:
    with pytest.raises(ShardError, match="tensor w is complex64"):
        shards_of([("w", torch.ones(2, dtype=torch.complex64))], "bfloat16")


def test_words_come_from_where_they_lie_or_from_one_scratch() -> None:
    weights = {"a": torch.arange(10, dtype=torch.bfloat16), "b": torch.arange(10, 20, dtype=torch.bfloat16)}
    words = ShardWords(shards_of(weights.items(), "bfloat16"))
    single = words.of(Bucket(0, 0, 2, (Segment("a", 3, 4),)))
    assert single.__array_interface__["data"][0] == weights["a"].data_ptr() + 6
    both = words.of(Bucket(1, 0, 2, (Segment("b", 1, 2), Segment("a", 0, 3))))
    expected = torch.cat([weights["b"][1:3], weights["a"][:3]]).view(torch.uint16).numpy()
    assert np.array_equal(both, expected)


def test_what_is_made_of_a_shard_is_made_once_for_its_words_in_a_row_and_cast() -> None:
    weight, made = torch.arange(12, dtype=torch.bfloat16), []

    def add_one(tensor: torch.Tensor) -> torch.Tensor:
        made.append(tensor)
        return tensor.float() + 1.001

    plain = shards_of([("w", weight), ("v", weight[:4].clone())], "bfloat16")
    words = ShardWords([replace(plain[0], made=add_one), replace(plain[1], frozen=True)])
    buckets = [Bucket(i, 0, 2, (Segment("w", 4 * i, 4),)) for i in range(3)]
    found = np.concatenate([words.of(bucket).copy() for bucket in buckets])
    assert np.array_equal(found, (weight.float() + 1.001).to(torch.bfloat16).view(torch.uint16).numpy())
    assert len(made) == 1
    assert [words.are_frozen(Bucket(0, 0, 2, (Segment(name, 0, 4),))) for name in ("w", "v")] == [False, True]
    assert not words.are_frozen(Bucket(0, 0, 2, (Segment("w", 0, 4), Segment("v", 0, 4))))
    whole = ShardWords([replace(plain[0], made=add_one, wire=torch.float32)])  # nothing is left to cast
    single = whole.of(Bucket(0, 0, 4, (Segment("w", 0, 12),)))
    assert np.array_equal(single, (weight.float() + 1.001).view(torch.uint32).numpy())


def test_words_that_moved_to_another_rank_are_refused() -> None:
    words = ShardWords([LocalShard("a", torch.zeros(4, dtype=torch.bfloat16), (Segment("a", 8, 4),))])
    assert words.of(Bucket(0, 0, 2, (Segment("a", 9, 3),))).size == 3
    for segment in (Segment("a", 7, 2), Segment("a", 10, 3), Segment("z", 0, 1)):
        with pytest.raises(ShardError, match="no longer among this rank's shards"):
            words.of(Bucket(0, 0, 2, (segment,)))


@given(data=st.data(), whole=st.lists(st.integers(1, 5), min_size=0, max_size=4))
def test_the_runs_of_a_box_are_its_words_in_order(data: st.DataObject, whole: list[int]) -> None:
    offset = [data.draw(st.integers(0, size - 1)) for size in whole]
    shape = [data.draw(st.integers(0, size - low)) for size, low in zip(whole, offset, strict=True)]
    index = np.arange(int(np.prod(whole)) if whole else 1).reshape(whole)
    box = index[tuple(slice(low, low + size) for low, size in zip(offset, shape, strict=True))]
    cut = [[(low, low + size)] if size else [] for low, size in zip(offset, shape, strict=True)]
    runs = flat_runs(whole, cut)
    assert [word for start, count in runs for word in range(start, start + count)] == box.reshape(-1).tolist()


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """This process as one rank of several, without the others. torch remembers a rank per world size: use each once."""
    number, world = request.param
    dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=world)
    yield number, world
    dist.destroy_process_group()


def piece(whole: torch.Tensor, placement: Shard | Replicate, rank: tuple[int, int]) -> DTensor:
    mesh = init_device_mesh("cpu", (rank[1],))
    local = whole
    if isinstance(placement, Shard):
        chunks = whole.chunk(rank[1], placement.dim)
        local = chunks[rank[0]] if rank[0] < len(chunks) else whole.narrow(placement.dim, 0, 0)
    return DTensor.from_local(local, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride())


@pytest.mark.parametrize(
    ("rank", "size", "expected"),
    [((0, 9), 7, [(0, 2)]), ((2, 3), 7, [(12, 2)]), ((2, 5), 7, [(8, 4)]), ((3, 4), 5, []), ((6, 7), 7, [(12, 2)])],
    indirect=["rank"],
)
def test_uneven_and_empty_shards_name_the_words_they_hold(
    rank: tuple[int, int], size: int, expected: list[tuple[int, int]]
) -> None:
    """B060, B061, B062: beside a plain tensor; 7 rows over 3 ranks are 3, 3, 1; 5 over 4 leave the last without any."""
    whole = torch.arange(size * 2, dtype=torch.float32).reshape(size, 2)
    sharded, plain = piece(whole, Shard(0), rank), torch.ones(3)
    shards = shards_of([("w", sharded), ("norm", plain)], "bfloat16")
    assert segments_of(shards) == {"w": expected, "norm": [(0, 3)]}
    words = whole.to(torch.bfloat16).view(torch.uint16).reshape(-1).numpy()
    for start, count in expected:
        found = ShardWords(shards).of(Bucket(0, 0, 2, (Segment("w", start, count),)))
        assert np.array_equal(found, words[start : start + count])


@pytest.mark.parametrize("rank", [(1, 2)], indirect=True)
def test_a_column_shard_is_one_run_a_row_and_a_replica_is_whole(rank: tuple[int, int]) -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    named = [("columns", piece(whole, Shard(1), rank)), ("copy", piece(whole + 1, Replicate(), rank))]
    shards = shards_of(named, "bfloat16")
    assert segments_of(shards) == {"columns": [(2, 2), (6, 2), (10, 2)], "copy": [(0, 12)]}
    found = ShardWords(shards).of(Bucket(0, 0, 2, tuple(shards[0].segments)))
    assert np.array_equal(found, whole[:, 2:].to(torch.bfloat16).view(torch.uint16).reshape(-1).numpy())
