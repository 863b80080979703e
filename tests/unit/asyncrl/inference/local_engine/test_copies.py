"""Words are written into a copy where its layout has them, or not at all."""

from itertools import product

import numpy as np
import pytest
import torch

from asyncrl.inference.local_engine import copies, products
from asyncrl.inference.local_engine.changes import FEW, Changes
from asyncrl.inference.local_engine.copies import Copy
from asyncrl.inference.local_engine.places import WORDS, Places, places_of
from asyncrl.inference.local_engine.products import LAYOUTS, Kind, Layout

SHAPES = [(51, 160), (160, 51), (33, 64), (64, 64), (1, 8), (300, 1), (70_000, 4)]
"""Not all of whole blocks; one has more rows than 16 bits count."""

KINDS: tuple[Kind, ...] = ("packed", "transposed", "plain")


@pytest.fixture(params=[True, False], ids=["numba", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not copies.HAVE_NUMBA:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(copies, "HAVE_NUMBA", request.param)


def random_bits(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Finite numbers of all magnitudes, and a NaN."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-30, 30, shape, generator=generator)
    numbers[-1, -1] = float("nan")
    return numbers.to(dtype)


@pytest.mark.parametrize(("kind", "stored", "computed"), [*product(KINDS, WORDS, WORDS)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_copy_that_is_written_to_equals_one_that_is_made_again(
    kind: Kind, stored: torch.dtype, computed: torch.dtype, shape: tuple[int, int], kernels: None
) -> None:
    if kind == "packed" and computed == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no packed bfloat16 here")
    plain = random_bits(shape, stored, 0)
    copy = LAYOUTS[kind].lay_out(plain.clone().to(computed))
    held = Copy.of(copy, places_of(kind, shape, computed), plain)
    assert held is not None
    where = np.flatnonzero(np.random.default_rng(1).random(plain.numel()) < 0.1).astype(np.int32)
    plain.view(-1)[where] = random_bits(shape, stored, 2).view(-1)[where]
    held.write(plain, where)
    again = Copy.of(LAYOUTS[kind].lay_out(plain.clone().to(computed)), places_of(kind, shape, computed), plain)
    assert again is not None
    assert torch.equal(held.memory.view(WORDS[computed]), again.memory.view(WORDS[computed]))


def test_a_copy_whose_numbers_lie_elsewhere_is_not_written_to() -> None:
    plain = random_bits((8, 4), torch.float32, 0)
    places = places_of("plain", (8, 4), torch.float32)
    assert places is not None
    assert Copy.of(plain.clone(), places, plain) is not None
    assert Copy.of(plain.clone(), places._replace(row=places.row[::-1].copy()), plain) is None
    assert Copy.of(plain.clone(), Places(places.row + 1, places.column), plain) is None  # the last word is outside
    assert Copy.of(plain.clone(), None, plain) is None


def test_a_layout_that_drops_or_repeats_numbers_has_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (lambda weight: weight.abs().clamp(max=0), lambda weight: weight.repeat(2, 1)):
        monkeypatch.setattr(products, "_packed", broken)
        monkeypatch.setitem(LAYOUTS, "packed", Layout(broken, LAYOUTS["packed"].linear))  # type: ignore[arg-type]
        assert places_of.__wrapped__("packed", (12, 7), torch.float32) is None


def test_few_words_are_kept_as_places_and_many_as_a_whole_tensor() -> None:
    changes = Changes({"matrix": torch.zeros(16, FEW), "norm": torch.zeros(16)})
    assert not changes
    changes.add_words("matrix", np.zeros(0, np.int64))
    assert not changes
    changes.add_words("matrix", np.arange(10))
    changes.add_words("matrix", np.arange(6))
    assert (changes.whole, [piece.tolist() for piece in changes.words["matrix"]]) == (
        set(),
        [[*range(10)], [*range(6)]],
    )
    changes.add_words("matrix", np.arange(1))
    changes.add_words("norm", np.arange(1))
    assert (changes.whole, changes.words) == ({"matrix", "norm"}, {})
    changes.add_words("matrix", np.arange(1))
    assert not changes.words
