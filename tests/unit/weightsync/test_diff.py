"""Kernels and digest: numba and numpy give the same bits; positions, differences and digests are exact."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.weights import changed, manifest_of, random_model, random_words, save_model
from weightsync import diff, diff_numpy
from weightsync.diff_numpy import Planes
from weightsync.digest import MASK, digest, digest_at, digest_of_model_dir, total
from weightsync.layout import WORD_DTYPE, AddressTable, Words
from weightsync.planes import Scratch, apply_planes, decode_planes, encode_planes

SCRATCH = Scratch()


def table_of(num_words: int, width: int = 2) -> AddressTable:
    """Two segments far apart, when there are words for two."""
    cut = num_words // 3
    if cut == 0:
        return AddressTable(np.array([num_words]), np.array([7]))
    step = 2 if width == 4 else 1
    return AddressTable(np.array([cut, num_words]), np.array([1000, 900_000 - cut * step]))


def slow_term(address: int, word: int) -> int:
    x = (address << 16) + word
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow_digest(words: Words, start: int) -> int:
    if words.dtype.itemsize == 4:
        halves = [(int(w) & 0xFFFF, int(w) >> 16) for w in words]
        return sum(slow_term(start + 2 * i + j, half[j]) for i, half in enumerate(halves) for j in (0, 1)) & MASK
    return sum(slow_term(start + i, int(word)) for i, word in enumerate(words)) & MASK


def assert_same_planes(one: Planes, other: Planes) -> None:
    for name, a, b in zip(Planes._fields, one, other, strict=True):
        assert np.array_equal(a, b), name


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("fraction", [0.0, 0.0005, 0.02, 0.4, 1.0])
@pytest.mark.parametrize("num_words", [1, 63, 64, 65, 255, 256, 257, 4095, 4097, 20_011])
def test_numba_and_numpy_give_the_same_planes_and_both_are_exact(num_words: int, fraction: float, width: int) -> None:
    if not diff.HAVE_NUMBA:
        pytest.skip("numba is not installed")
    rng = np.random.default_rng(num_words * 7 + width)
    old = random_words(rng, num_words, width)
    table = table_of(num_words, width)
    for small in (True, False):
        new = changed(old, rng, fraction, small=small)
        fast, slow = encode_planes(old, new, table, SCRATCH), diff_numpy.encode_planes(old, new, table)
        assert_same_planes(fast, slow)
        for planes, apply in ((fast, apply_planes), (slow, diff_numpy.apply_planes)):
            target = old.copy()
            assert apply(target, planes, table) == planes.digest_delta
            assert np.array_equal(target, new)
        positions, differences = np.empty(slow.num_changed, np.int64), np.empty(slow.num_changed, new.dtype)
        diff_numpy.decode(slow, positions, differences)
        for a, b in zip(decode_planes(fast, new.dtype), (positions, differences), strict=True):
            assert np.array_equal(a, b)


@settings(max_examples=150, deadline=None)
@given(
    width=st.sampled_from([1, 2, 4]),
    data=st.data(),
    old=st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=300),
)
def test_any_words_to_any_words_is_exact(width: int, data: st.DataObject, old: list[int]) -> None:
    mask = (1 << 8 * width) - 1
    before = np.array([w & mask for w in old]).astype(WORD_DTYPE[width])
    after = before.copy()
    for i in data.draw(st.lists(st.integers(0, len(old) - 1), max_size=20)):
        after[i] = data.draw(st.integers(0, mask))
    table = table_of(len(old), width)
    planes = encode_planes(before, after, table, SCRATCH)
    assert planes.num_changed == int((before != after).sum())
    target = before.copy()
    gain = apply_planes(target, planes, table)
    assert np.array_equal(target, after)
    assert_same_planes(planes, diff_numpy.encode_planes(before, after, table))
    cut = int(table.ends[0])
    starts = (
        int(table.bases[0]),
        int(table.bases[-1]) + (0 if len(table.ends) == 1 else cut * (2 if width == 4 else 1)),
    )

    def whole(words: Words) -> int:
        pieces = [words] if len(table.ends) == 1 else [words[:cut], words[cut:]]
        return total(slow_digest(piece, start) for piece, start in zip(pieces, starts, strict=False))

    assert (whole(before) + gain) & MASK == whole(after)


def test_signed_zeros_nan_payloads_infinities_and_denormals_survive_bit_for_bit(kernels: str) -> None:
    """B046: bf16 1, 0, nan, 2, -0 -> 1, -0, nan, 2.015625, 0: by value the changes would be 2 and 3."""
    old = np.array([0x3F80, 0x0000, 0x7FC0, 0x4000, 0x8000], WORD_DTYPE[2])
    new = np.array([0x3F80, 0x8000, 0x7FC0, 0x4001, 0x0000], WORD_DTYPE[2])
    table = table_of(5)
    planes = encode_planes(old, new, table, SCRATCH)
    assert decode_planes(planes, new.dtype)[0].tolist() == [1, 3, 4]
    words = np.arange(65536, dtype=WORD_DTYPE[2])
    for other in (1, 0x8000, 0x7F80, 0x7FC0, 0xFFFF, 12345):
        target, end = words.copy(), (words ^ other).astype(WORD_DTYPE[2])
        apply_planes(target, encode_planes(words, end, table_of(65536), SCRATCH), None)
        assert np.array_equal(target, end)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([0x4380, 0x3F80, 0x7F62], [0x3F80, 0x4380, 0xFF62]),  # 256 <-> 1, 3e38 -> -3e38: adding floats gives -inf
        ([0x3F80, 0x4000], [0x7FC0, 0x4000]),  # a weight that becomes NaN
        ([0x3F80], [0x4080]),  # a power of four: only the high byte differs
    ],
)
def test_differences_are_of_bits_and_not_of_values(kernels: str, old: list[int], new: list[int]) -> None:
    """B047, B048, B070: nothing is added as a float, no value stands for "not sent", every byte is compared."""
    target, end = (np.array(words, WORD_DTYPE[2]) for words in (old, new))
    planes = encode_planes(target, end, table_of(len(old)), SCRATCH)
    apply_planes(target, planes, None)
    assert np.array_equal(target, end)


def test_an_unchanged_bucket_gives_empty_planes(kernels: str) -> None:
    words = np.arange(1000, dtype=WORD_DTYPE[2])
    planes = encode_planes(words, words.copy(), table_of(1000), SCRATCH)
    assert (planes.num_changed, planes.gaps.size, planes.values.size, planes.digest_delta) == (0, 0, 0, 0)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_digest_is_the_sum_of_its_terms_in_any_order_and_any_cut(kernels: str, width: int) -> None:
    words = random_words(np.random.default_rng(3), 700, width)
    step = 2 if width == 4 else 1
    expected = slow_digest(words, 5)
    assert digest(words, 5) == expected
    assert total((digest(words[:123], 5), digest(words[123:], 5 + 123 * step))) == expected
    order = np.random.default_rng(4).permutation(700)
    assert digest_at(5 + order * step, words[order]) == expected
    assert digest(words[:0], 5) == 0


def test_the_digest_sees_swapped_words() -> None:
    words = np.array([1, 2], WORD_DTYPE[2])
    assert digest(words, 0) != digest(words[::-1].copy(), 0)


def test_ranks_add_up_to_the_digest_of_a_model_directory(tmp_path: Path) -> None:
    manifest = manifest_of()
    model = random_model(manifest)
    save_model(tmp_path, manifest, model)
    whole = digest_of_model_dir(tmp_path, manifest)
    assert whole == total(slow_digest(model[spec.name], spec.offset) for spec in manifest.tensors)
    assert whole == total(digest_of_model_dir(tmp_path, manifest, rank, 3) for rank in range(3))


def test_a_scratch_that_is_too_small_grows_and_remembers() -> None:
    scratch = Scratch()
    rng = np.random.default_rng(0)
    old = random_words(rng, 300_000, 2)
    for fraction in (0.01, 0.9, 0.01):
        new = changed(old, rng, fraction, small=False)
        target = old.copy()
        apply_planes(target, encode_planes(old, new, table_of(old.size), scratch), None)
        assert np.array_equal(target, new)
