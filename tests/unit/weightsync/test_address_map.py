"""The recorded map: what an engine's own loader does with each word, without writing one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.support.fused_model import FusedModel, bits, checkpoint, same_bits, stepped
from weightsync import address_map
from weightsync.address_map import AddressMap, Box, signature
from weightsync.engine_words import decode_on_device, digest_at, digest_on_device, digest_run, storage_words, to_engine
from weightsync.layout import TensorSpec
from weightsync.manifest import Manifest
from weightsync.planes import Scratch, decode_planes, encode_planes


def manifest_of(weights: dict[str, Tensor]) -> Manifest:
    return Manifest.of((name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in weights.items())


def loaded(rank: int, world: int, weights: dict[str, Tensor]) -> FusedModel:
    model = FusedModel(rank, world)
    model.load_weights(weights.items())
    return model


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2), (3, 4)])
def test_words_scattered_through_the_map_are_what_the_loader_itself_gives(rank: int, world: int) -> None:
    old = checkpoint()
    new = stepped(old, 1, 0.3)
    model, expected = loaded(rank, world, old), loaded(rank, world, new)
    found = AddressMap.record(model, manifest_of(old).tensors)
    assert found.opaque == {}
    for name, tensor in new.items():
        before, after = (t[name].view(torch.int16).reshape(-1) for t in (old, new))
        positions = torch.nonzero(before != after).reshape(-1)
        for box in found.boxes.get(name, ()):
            indices, chosen = box.translate(positions)
            box.words.index_add_(0, indices, (after - before)[positions][chosen])
        assert tensor.shape == old[name].shape
    assert same_bits(bits(model), bits(expected))


def test_recording_writes_nothing_not_even_the_padding() -> None:
    model = loaded(1, 2, checkpoint())
    model.embed.data[-1] = 7.0  # a padding row
    before = bits(model)
    AddressMap.record(model, manifest_of(checkpoint()).tensors)
    assert same_bits(before, bits(model))


def test_a_tensor_that_the_loader_computes_with_is_opaque_and_the_others_are_not() -> None:
    model = FusedModel(scaled_norm=True)
    found = AddressMap.record(model, manifest_of(checkpoint()).tensors)
    assert set(found.opaque) == {"model.norm.weight"}
    assert set(found.boxes) == set(checkpoint()) - {"model.norm.weight"}


class OneTensor(nn.Module):
    """A model with one parameter and a loader of the test's choosing."""

    def __init__(self, parameter: Tensor, load: object) -> None:
        super().__init__()
        self.w = nn.Parameter(parameter, requires_grad=False)
        self.load = load

    def load_weights(self, weights: object) -> None:
        for _, weight in weights:  # type: ignore[attr-defined]  # pairs of name and tensor
            self.load(self.w.data, weight)  # type: ignore[operator]  # given by the test


@pytest.mark.parametrize(
    ("load", "opaque"),
    [
        (lambda w, x: w.copy_(x.t()), False),
        (
            lambda w, x: w.copy_(x.t().contiguous()),
            False,
        ),
        (lambda w, x: w.copy_(x.t().to(torch.bfloat16)), False),
        (lambda w, x: w.copy_(x[:, ::2].repeat(1, 2).t()), True),
        (lambda w, x: w.copy_(torch.cat([x[:1], x[1:]]).t()), True),
        (lambda w, x: w.copy_(x.float().t()), True),
        (lambda w, x: w.fill_(x[0, 0].item()), True),
        (lambda w, x: w.copy_(x[:1].expand(3, 4).t()), True),
    ],
    ids=["transpose", "contiguous", "same dtype", "repeat", "cat", "cast", "scalar", "broadcast"],
)
def test_views_have_addresses_and_anything_more_is_opaque(load: object, opaque: bool) -> None:
    model = OneTensor(torch.zeros(4, 3, dtype=torch.bfloat16), load)
    found = AddressMap.record(model, (TensorSpec("w", "bfloat16", (3, 4), 0),))  # type: ignore[arg-type]  # duck-typed
    assert ("w" in found.opaque) is opaque
    assert torch.equal(model.w, torch.zeros_like(model.w))


def test_an_eight_byte_element_is_two_words() -> None:
    model = OneTensor(torch.zeros(2, 3, dtype=torch.int64), lambda w, x: w.copy_(x.t()))
    spec = TensorSpec("w", "int64", (3, 2), 0)
    (box,) = AddressMap.record(model, (spec,)).boxes["w"]  # type: ignore[arg-type]  # duck-typed
    source = torch.arange(6, dtype=torch.int64).reshape(3, 2) * (1 << 33) + 5
    indices, chosen = box.translate(torch.arange(12))
    box.words[indices] = source.view(torch.int32).reshape(-1)[chosen]
    assert torch.equal(model.w.data, source.t())


def test_of_two_names_with_one_destination_the_last_writer_counts() -> None:
    model = OneTensor(torch.zeros(4, dtype=torch.bfloat16), lambda w, x: w.copy_(x))
    specs = (TensorSpec("a", "bfloat16", (4,), 0), TensorSpec("b", "bfloat16", (4,), 4))
    assert set(AddressMap.record(model, specs).boxes) == {"b"}  # type: ignore[arg-type]  # duck-typed


def test_moved_parameters_have_another_signature() -> None:
    model = FusedModel()
    before = signature(model)
    assert signature(model) == before
    model.norm.data = model.norm.data.clone()
    assert signature(model) != before


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.integers(1, 6), columns=st.integers(1, 6), depth=st.integers(1, 3))
def test_any_slice_of_any_tensor_translates_exactly(data: st.DataObject, rows: int, columns: int, depth: int) -> None:
    spec = TensorSpec("w", "bfloat16", (rows, columns, depth), 0)
    cuts = []
    for size in spec.shape:
        low = data.draw(st.integers(0, size - 1))
        cuts.append(slice(low, data.draw(st.integers(low + 1, size))))
    order = data.draw(st.permutations([0, 1, 2]))
    source = torch.arange(rows * columns * depth, dtype=torch.int16).reshape(spec.shape)
    wanted = source[tuple(cuts)].permute(order)
    model = OneTensor(
        torch.zeros(wanted.shape, dtype=torch.bfloat16), lambda w, x: w.copy_(x[tuple(cuts)].permute(order))
    )
    boxes = AddressMap.record(model, (spec,)).boxes["w"]  # type: ignore[arg-type]  # duck-typed
    positions = torch.nonzero(torch.rand(source.numel()) < 0.7).reshape(-1)
    result = torch.full(wanted.shape, -1, dtype=torch.int16)
    for box in boxes:
        indices, chosen = box.translate(positions)
        result.view(-1)[indices] = source.reshape(-1)[positions][chosen]
    inside = torch.isin(wanted, source.reshape(-1)[positions])
    assert torch.equal(result[inside], wanted[inside])
    assert bool((result[~inside] == -1).all())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_torch_and_numpy_take_the_same_digest_and_decode_the_same_planes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    raw = torch.randint(0, 256, (4000,), generator=generator, dtype=torch.uint8)
    words = storage_words(raw.view(dtype))
    addresses = 11 + torch.arange(words.numel()) * (2 if words.element_size() == 4 else 1)
    assert digest_on_device(addresses, words) == digest_at(addresses, words) == digest_run(words, 11)
    old = words.numpy().view(f"<u{words.element_size()}")
    new = old.copy()
    new[::3] += 1
    new[::7] += 200
    from weightsync.layout import AddressTable

    table = AddressTable(torch.tensor([old.size]).numpy(), torch.tensor([0]).numpy())
    planes = encode_planes(old, new, table, Scratch())
    device = torch.device("cpu")
    planes_t = [to_engine(p, device) for p in (planes.gaps, planes.values, planes.escaped)]
    positions, differences = decode_on_device(*planes_t, planes.num_changed)
    expected = decode_planes(planes, new.dtype)
    assert torch.equal(positions, torch.from_numpy(expected[0]))
    assert torch.equal(differences, to_engine(expected[1], device))


def test_a_box_knows_its_span_and_whether_it_is_one_run() -> None:
    words = torch.zeros(100, dtype=torch.int16)
    assert Box("w", 5, 0, ((10, 1, 1),), words).contiguous
    assert Box("w", 5, 0, ((10, 1, 1),), words).span == (5, 15)
    assert Box("w", 5, 0, (), words).span == (5, 6)
    assert not Box("w", 5, 0, ((3, 10, 4), (4, 1, 1)), words).contiguous
    assert Box("w", 5, 0, ((3, 10, 4), (4, 1, 1)), words).span == (5, 29)


@pytest.mark.parametrize("most", [1, 5, 7, 40, 120])
def test_large_boxes_are_cut_into_pieces_that_hold_the_same_words(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TensorSpec("w", "bfloat16", (8, 20), 0)
    model = OneTensor(torch.zeros(14, 7, dtype=torch.bfloat16), lambda w, x: w.copy_(x[1:8, 3:17].t()))

    def written() -> tuple[int, torch.Tensor]:
        boxes = AddressMap.record(model, (spec,)).meeting("w", 0, 160)  # type: ignore[arg-type]  # duck-typed
        result = torch.full((14 * 7,), -1, dtype=torch.int16)
        for box in boxes:
            indices, chosen = box.translate(torch.arange(160))
            assert bool((result[indices] == -1).all()), "no word belongs to two pieces"
            result[indices] = torch.arange(160, dtype=torch.int16)[chosen]
        return len(boxes), result

    whole = written()
    monkeypatch.setattr(address_map, "MAX_WORDS", most)
    pieces = written()
    assert (whole[0], pieces[0]) == (1, {1: 7, 5: 7, 7: 7, 40: 4, 120: 1}[most])
    assert torch.equal(whole[1], pieces[1])


def test_only_boxes_that_meet_a_run_are_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_map, "MAX_WORDS", 20)
    model = OneTensor(torch.zeros(8, 20, dtype=torch.bfloat16), lambda w, x: w.copy_(x))
    found = AddressMap.record(model, (TensorSpec("w", "bfloat16", (8, 20), 0),))  # type: ignore[arg-type]  # duck-typed
    assert [box.span for box in found.meeting("w", 39, 61)] == [(20, 40), (40, 60), (60, 80)]
    assert found.meeting("w", 160, 170) == []
    assert found.meeting("unknown", 0, 1) == []
