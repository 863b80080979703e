"""Layouts: addresses, ids, ties, what is refused, how shards become buckets."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.weights import SHAPES, manifest_of, random_model, save_model
from weightsync.buckets import BucketPlan
from weightsync.errors import LayoutMismatch, ModelDirError, ShardError
from weightsync.layout import Segment
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir


def test_addresses_of_tensors_never_meet_whatever_their_word_width() -> None:
    manifest = manifest_of()
    at = 0
    for spec in manifest.tensors:
        assert spec.offset == at
        at += spec.num_words * (2 if spec.width == 4 else 1)


def test_a_manifest_survives_its_encoding_and_its_id_names_the_layout() -> None:
    manifest = manifest_of()
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    other = manifest_of({**SHAPES, "model.codes": ("uint8", (12,))})
    assert len(manifest.layout_id) == 16
    assert other.layout_id != manifest.layout_id
    assert Manifest.of([], [("a", "b")]).layout_id != Manifest.of([]).layout_id


def test_a_mismatch_names_the_first_tensor_that_differs_and_what_each_side_has() -> None:
    """B066: also where all names differ by a prefix only."""
    theirs = manifest_of({**SHAPES, "model.layers.0.proj.weight": ("bfloat16", (8, 24))})
    with pytest.raises(
        LayoutMismatch, match=r"proj.weight: this host has bfloat16 \[24, 8\], the trainer has bfloat16 \[8, 24\]"
    ):
        manifest_of().check(theirs, "this host", "the trainer")
    shorter = manifest_of({name: shape for name, shape in SHAPES.items() if name != "model.codes"})
    with pytest.raises(
        LayoutMismatch, match=r"model.codes: this host has uint8 \[11\], the trainer has no such tensor"
    ):
        manifest_of().check(shorter, "this host", "the trainer")
    prefixed = manifest_of({f"language_model.{name}": shape for name, shape in SHAPES.items()})
    with pytest.raises(LayoutMismatch, match=r"tensor language_model\.model\.codes: this host has no such tensor"):
        manifest_of().check(prefixed, "this host", "the trainer")


def test_bytes_that_are_no_manifest_are_refused() -> None:
    for blob in (b"", b"\xc1", b"\x93\x02\x90\x90", manifest_of().to_bytes()[:-3]):
        with pytest.raises(LayoutMismatch):
            Manifest.from_bytes(blob)


def test_a_model_directory_gives_its_manifest_and_its_words(tmp_path: Path) -> None:
    manifest = manifest_of()
    model = random_model(manifest)
    save_model(tmp_path, manifest, model)
    assert Manifest.from_model_dir(tmp_path, "bfloat16")
    read = ModelDir(tmp_path)
    assert all((read.words(name) == words).all() for name, words in model.items())


def test_a_directory_in_another_dtype_than_the_wire_is_refused_with_the_way_out(tmp_path: Path) -> None:
    manifest = manifest_of({"w": ("float32", (2, 2))})
    save_model(tmp_path, manifest, random_model(manifest))
    with pytest.raises(
        ModelDirError, match=r"tensor w is float32, the wire dtype is bfloat16.*model.wire_dtype to float32"
    ):
        Manifest.from_model_dir(tmp_path, "bfloat16")


def test_a_directory_that_mixes_dtypes_keeps_each_of_them(tmp_path: Path) -> None:
    """A router's: its biases are float32 beside bfloat16, and no side may round them."""
    shapes = {"experts": ("bfloat16", (8, 4)), "router.bias": ("float32", (8,)), "scale": ("float16", (3,))}
    manifest = manifest_of(shapes)
    save_model(tmp_path, manifest, random_model(manifest))
    found = Manifest.from_model_dir(tmp_path, "bfloat16")
    assert found == manifest
    assert found.dtypes == {"experts": "bfloat16", "router.bias": "float32", "scale": "float16"}
    with pytest.raises(ModelDirError, match="tensor experts is bfloat16, the wire dtype is float32"):
        Manifest.from_model_dir(tmp_path, "float32")


def test_a_tied_head_is_sent_once_whether_or_not_the_files_list_it(tmp_path: Path) -> None:
    shapes = {"model.embed_tokens.weight": ("bfloat16", (4, 2))}
    with_head = {**shapes, "lm_head.weight": ("bfloat16", (4, 2))}
    tied = {"tie_word_embeddings": True}
    for name, listed in (("without", shapes), ("with", with_head)):
        manifest = manifest_of(listed)
        save_model(tmp_path / name, manifest, random_model(manifest), tied)
    one, two = (Manifest.from_model_dir(tmp_path / name, "bfloat16") for name in ("without", "with"))
    assert one == two
    assert [spec.name for spec in one.tensors] == ["model.embed_tokens.weight"]
    assert one.ties == (("lm_head.weight", "model.embed_tokens.weight"),)


@pytest.mark.parametrize("damage", ["cut", "header", "offsets", "missing", "escape"])
def test_a_damaged_model_directory_is_refused(tmp_path: Path, damage: str) -> None:
    manifest = manifest_of()
    save_model(tmp_path, manifest, random_model(manifest))
    file = tmp_path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(raw[:-1])
    elif damage == "header":
        raw[9] = 0
        file.write_bytes(raw)
    elif damage == "offsets":
        file.write_bytes(bytes(raw).replace(b'"shape": [11]', b'"shape": [99]'))
    elif damage == "missing":
        file.unlink()
    else:
        index = {"weight_map": {"w": "../../elsewhere.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelDirError):
        ModelDir(tmp_path)


@given(bucket_words=st.integers(1, 400), cuts=st.lists(st.integers(0, 320), max_size=4))
def test_buckets_hold_every_word_once_and_none_is_too_large(bucket_words: int, cuts: list[int]) -> None:
    manifest = manifest_of()
    edges = sorted({0, 320, *cuts})
    embed = [Segment("model.embed_tokens.weight", a, b - a) for a, b in itertools.pairwise(edges)]
    rest = [segment for segment in manifest.whole() if segment.tensor != "model.embed_tokens.weight"]
    plan = BucketPlan.build(manifest, [embed, rest], bucket_words)
    seen: dict[str, list[tuple[int, int]]] = {}
    for bucket in plan.buckets:
        assert 0 < bucket.num_words <= bucket_words
        assert {manifest.by_name[s.tensor].width for s in bucket.segments} == {bucket.width}
        for segment in bucket.segments:
            seen.setdefault(segment.tensor, []).append((segment.start, segment.end))
    for spec in manifest.tensors:
        covered = sorted(seen.get(spec.name, []))
        assert [b for _, b in covered[:-1]] == [a for a, _ in covered[1:]]
        assert sum(b - a for a, b in covered) == spec.num_words
    assert BucketPlan.from_bytes(plan.to_bytes(), manifest) == plan


@given(num_words=st.integers(1, 5000), bucket_words=st.integers(64, 700))
def test_a_tensor_is_cut_into_as_few_pieces_as_there_must_be(num_words: int, bucket_words: int) -> None:
    plan = BucketPlan.whole(Manifest.of([("w", "bfloat16", (num_words,))]), bucket_words)
    sizes = [bucket.num_words for bucket in plan.buckets]
    assert len(sizes) == -(-num_words // bucket_words)
    assert len(set(sizes[:-1])) <= 1
    assert all(size % 64 == 0 or size == bucket_words for size in sizes[:-1])


def test_small_tensors_share_a_bucket() -> None:
    manifest = manifest_of({f"norm.{i}": ("bfloat16", (8,)) for i in range(50)})
    plan = BucketPlan.whole(manifest, 1 << 20)
    assert len(plan.buckets) == 1
    assert len(plan.buckets[0].segments) == 50


def test_a_replicated_parameter_belongs_to_its_lowest_rank_and_an_empty_shard_to_nobody() -> None:
    manifest = manifest_of({"norm": ("bfloat16", (8,)), "proj": ("bfloat16", (5, 2))})
    norm = Segment("norm", 0, 8)
    # Dim 5 over 4 ranks: 2, 2, 1 and nothing.
    rows = [[Segment("proj", 0, 4)], [Segment("proj", 4, 4)], [Segment("proj", 8, 2)], [Segment("proj", 10, 0)]]
    plan = BucketPlan.build(manifest, [[norm, *mine] for mine in rows], 1 << 20)
    owners = {segment: bucket.rank for bucket in plan.buckets for segment in bucket.segments}
    assert owners[norm] == 0
    assert sorted((s.start, r) for s, r in owners.items() if s.tensor == "proj") == [(0, 0), (4, 1), (8, 2)]
    assert plan.of_rank(3) == []


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([Segment("proj", 0, 9)], "holds only 9"),
        ([Segment("proj", 0, 6), Segment("proj", 5, 5)], "expected a shard that starts at 6"),
        ([Segment("proj", 0, 11)], "holds words 0 to 11"),
        ([Segment("proj", 0, 10), Segment("model.proj", 0, 10)], "the trainer holds model.proj"),
    ],
)
def test_shards_that_do_not_make_up_the_model_are_refused_by_name(segments: list[Segment], message: str) -> None:
    manifest = manifest_of({"proj": ("bfloat16", (5, 2))})
    with pytest.raises(ShardError, match=message):
        BucketPlan.build(manifest, [segments], 1 << 20)


def test_addresses_beyond_two_to_the_31_stay_exact() -> None:
    """B063: the last word of [152064, 16384] is number 2491416575."""
    manifest = Manifest.of([("embed", "bfloat16", (152064, 16384)), ("last", "float32", (2,))])
    plan = BucketPlan.whole(manifest, 1 << 22)
    last = plan.buckets[-1]
    table = plan.table(last)
    assert manifest.by_name["last"].offset == 152064 * 16384
    assert int(table.bases[0]) == 152064 * 16384
    wide = max((b for b in plan.buckets if b.width == 2), key=lambda b: b.segments[0].start)
    assert wide.segments[0].end == 2491416576
    assert int(plan.table(wide).bases[0]) + wide.num_words - 1 == 2491416575
