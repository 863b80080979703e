"""Both compiled encoders, with packed vectors and without, give numpy's bits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.weights import changed, random_words
from weightsync import diff, diff_numpy, diff_packed
from weightsync.diff_numpy import Planes
from weightsync.layout import AddressTable, Words, address_step
from weightsync.planes import Scratch, encode_planes, frozen
from weightsync.vector import CAN_PACK, HAVE_NUMBA

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="kernels are numba's")

BLOCK, WINDOW = diff_packed.BLOCK_WORDS, diff_packed.WINDOW_WORDS
SIZES = (*range(71), BLOCK - 1, BLOCK, BLOCK + 33, WINDOW - 1, WINDOW, WINDOW + 70)


@pytest.fixture(params=["packed", "bits"])
def encode(request: pytest.FixtureRequest) -> Any:
    if request.param == "bits":
        return diff.encode_by_bits
    if not CAN_PACK:
        pytest.skip("this processor packs no vectors")
    return diff_packed.encode


def table_of(num_words: int, width: int, cuts: list[int]) -> AddressTable:
    """Segments that end at the cuts, far apart."""
    ends = np.array([*sorted({cut for cut in cuts if 0 < cut < num_words}), max(num_words, 1)], np.int64)
    return AddressTable(ends, 1000 + np.arange(ends.size) * 700_001)


def assert_numpys(encode: Any, old: Words, new: Words, table: AddressTable) -> None:
    n, step = new.size, address_step(new.dtype.itemsize)
    expected = diff_numpy.encode_planes(old, new, table)
    room = n + diff.SLACK
    gaps, codes = np.empty(room + n // 255 + 64, np.uint8), np.empty(room, np.uint8)
    escaped = np.empty(room, new.dtype)
    num_gaps, count, escapes, gain = encode(
        frozen(old), frozen(new), gaps, codes, escaped, table.ends, table.bases, step
    )
    found = Planes(
        gaps[:num_gaps], diff_numpy.pack_nibbles(codes[:count]), escaped[:escapes], count, int(gain) % (1 << 64)
    )
    for name, a, b in zip(Planes._fields, found, expected, strict=True):
        assert np.array_equal(a, b), (name, n, new.dtype)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("fraction", [0.0, 0.03, 0.5, 1.0])
def test_every_size_around_an_edge(encode: Any, width: int, fraction: float) -> None:
    for num_words in SIZES:
        rng = np.random.default_rng(num_words)
        old = random_words(rng, num_words, width)
        new = changed(old, rng, fraction, small=num_words % 2 == 0)
        assert_numpys(encode, old, new, table_of(num_words, width, [1, 5, 40, BLOCK + 3, WINDOW]))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_gaps_over_windows_and_around_each_number_of_skips(encode: Any, width: int) -> None:
    old = np.zeros(3 * WINDOW + 5, f"<u{width}")
    for gap in (0, 1, 253, 254, 255, 256, 509, 510, 511, 765, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 300):
        new = old.copy()
        new[[gap, *range(gap + 1, gap + 40)]] = 3
        new[2 * gap + 60 : 2 * gap + 62] = 200
        assert_numpys(encode, old, new, table_of(old.size, width, [gap, gap + 1, gap + 20]))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_small_difference_and_the_most_distant_ones(encode: Any, width: int) -> None:
    some = np.array([*range(-40, 41), 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1], np.int64)
    for base in (0, 5, (1 << 8 * width) - 3):
        old = np.full(some.size, base, f"<u{width}")
        new = ((some + base) % (1 << 8 * width)).astype(old.dtype)
        assert_numpys(encode, old, new, table_of(old.size, width, []))


@settings(max_examples=60, deadline=None)
@given(
    width=st.sampled_from([1, 2, 4]),
    num_words=st.integers(1, 5000),
    seed=st.integers(0, 1 << 30),
    fraction=st.sampled_from([0.001, 0.01, 0.1, 0.9]),
    cuts=st.lists(st.integers(1, 4999), max_size=12),
    small=st.booleans(),
)
def test_any_words_and_any_segments(
    width: int, num_words: int, seed: int, fraction: float, cuts: list[int], small: bool
) -> None:
    rng = np.random.default_rng(seed)
    old = random_words(rng, num_words, width)
    new = changed(old, rng, fraction, small=small)
    for one in (diff.encode_by_bits, *([diff_packed.encode] if CAN_PACK else [])):
        assert_numpys(one, old, new, table_of(num_words, width, cuts))


@pytest.mark.parametrize("small", ["gaps", "codes", "escaped"])
def test_a_buffer_that_is_too_small_is_said_and_not_overrun(encode: Any, small: str) -> None:
    n = 20_000
    old, new = np.zeros(n, np.uint16), np.full(n, 999, np.uint16)
    room = {"gaps": 2 * n + diff.SLACK, "codes": n + diff.SLACK, "escaped": n + diff.SLACK} | {small: n // 2}
    held = [np.full(room[name] + 64, 77, np.uint8) for name in ("gaps", "codes")]
    escaped = np.full(room["escaped"] + 64, 777, np.uint16)
    table = table_of(n, 2, [])
    views = (held[0][: room["gaps"]], held[1][: room["codes"]], escaped[: room["escaped"]])
    assert encode(frozen(old), frozen(new), *views, table.ends, table.bases, 1)[0] == -1
    assert all((one[-64:] == 77).all() for one in held)
    assert (escaped[-64:] == 777).all()


@pytest.mark.skipif(not CAN_PACK, reason="this processor packs no vectors")
def test_large_buckets_of_which_much_changed_are_packed() -> None:
    n = diff.LEAST_PACKED_WORDS
    old = np.zeros(n, np.uint16)
    scratch = Scratch()
    assert diff.encoder(n, scratch.share) is diff.encode_by_bits, "of the first nothing is known"
    for every, expected in ((10, diff_packed.encode), (1000, diff.encode_by_bits), (1, diff_packed.encode)):
        new = old.copy()
        new[::every] += 1
        encode_planes(old, new, table_of(n, 2, []), scratch)
        assert diff.encoder(n, scratch.share) is expected
    assert diff.encoder(n - 1, 1.0) is diff.encode_by_bits
