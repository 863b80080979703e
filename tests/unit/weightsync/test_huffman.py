"""Planes as zstd frames of literals only: zstd reads them back, and they are near the entropy where zstd is not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.weights import random_words
from weightsync import diff, huffman
from weightsync.codec import HEADER, Encoder, FrameHeader, open_frame
from weightsync.layout import AddressTable, Bucket, Segment
from weightsync.prefix_code import LONGEST, code_lengths, cost_bits, describe

Bytes = npt.NDArray[np.uint8]

pytestmark = pytest.mark.skipif(not diff.HAVE_NUMBA, reason="numba is not installed")


def read_back(plane: Bytes) -> int:
    """Bytes of the plane's frame, which zstd decompresses to the plane."""
    packed = huffman.compress(plane)
    assert packed is not None
    assert zstandard.frame_content_size(packed) == plane.size
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 20)
    assert reader.decompress(packed, max_output_size=plane.size, allow_extra_data=False) == plane.tobytes()
    return len(packed)


def geometric(rng: np.random.Generator, p: float, count: int) -> Bytes:
    """Gaps of a bucket of which a share p changed, cut at 255."""
    return np.minimum(255, rng.geometric(p, count) - 1).astype(np.uint8)


@settings(max_examples=40, deadline=None)
@given(
    size=st.one_of(st.integers(huffman.LEAST, 9000), st.integers(huffman.BLOCK - 2, 2 * huffman.BLOCK + 999)),
    kind=st.integers(0, 5),
    seed=st.integers(0, 1 << 30),
)
def test_zstd_reads_every_plane_back(size: int, kind: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    planes: dict[int, Callable[[], npt.NDArray[Any]]] = {
        0: lambda: rng.integers(0, 256, size),  # incompressible: raw blocks
        1: lambda: geometric(rng, rng.uniform(0.001, 0.95), size),
        2: lambda: rng.integers(0, rng.integers(1, 257), size),  # codes of equal lengths, also of one byte only
        3: lambda: (rng.random(size) < rng.uniform(0, 0.02)) * rng.integers(0, 256, size),  # nearly one byte
        4: lambda: np.minimum(255, np.exp(rng.exponential(1.5, size))),  # codes at the length limit
        5: lambda: np.append(np.full(size // 2, 9), rng.integers(0, 5, size - size // 2)),  # blocks that differ
    }
    read_back(planes[kind]().astype(np.uint8))


@pytest.mark.parametrize("size", [huffman.LEAST - 1, 0])
def test_a_small_plane_is_left_to_zstd(size: int) -> None:
    assert huffman.compress(np.zeros(size, np.uint8)) is None


@pytest.mark.parametrize("p", [0.002, 0.5])
def test_gaps_are_within_four_percent_of_their_entropy_where_zstd_is_not(p: float) -> None:
    plane = geometric(np.random.default_rng(1), p, 1 << 19)  # of 0.002 are 60 % skips
    share = np.bincount(plane) / plane.size
    entropy = -float((share[share > 0] * np.log2(share[share > 0])).sum()) * plane.size / 8
    parameters = zstandard.ZstdCompressionParameters.from_level(1, min_match=7, hash_log=6, window_log=17)
    zstd = len(zstandard.ZstdCompressor(compression_params=parameters).compress(plane.tobytes()))
    assert huffman.has_runs(plane)
    assert read_back(plane) < 1.04 * entropy
    assert read_back(plane) < 0.97 * zstd


@settings(max_examples=60, deadline=None)
@given(occur=st.integers(0, 256), spread=st.floats(0, 17), seed=st.integers(0, 1 << 30))
def test_code_lengths_fill_the_code_and_keep_the_limit(occur: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen, lengths = np.zeros(256, np.int64), np.zeros(256, np.uint8)
    seen[rng.permutation(256)[:occur]] = np.exp2(rng.uniform(0, spread, occur))  # up to 2^17 times as often
    number = code_lengths(seen, lengths)
    assert number == np.count_nonzero(seen)
    if number < 2:
        assert not lengths.any()
        return
    assert np.array_equal(lengths > 0, seen > 0)
    assert lengths.max() <= LONGEST
    assert sum(2.0 ** -int(length) for length in lengths if length) == 1.0
    assert cost_bits(seen, lengths) == int((seen * lengths).sum())
    equal = number == 256 and lengths.min() == lengths.max()  # 255 equal weights have no description
    assert equal or 0 < describe(lengths, np.empty(256, np.uint8)) <= 129


def test_codes_are_as_short_as_those_of_the_textbook() -> None:
    counts = np.zeros(256, np.int64)
    counts[:6] = [45, 13, 12, 16, 9, 5]
    lengths = np.zeros(256, np.uint8)
    code_lengths(counts, lengths)
    assert lengths[:6].tolist() == [1, 3, 3, 3, 4, 4]


@pytest.mark.parametrize("fraction", [0.002, 0.5])
def test_frames_with_such_planes_open_with_every_check(fraction: float) -> None:
    rng = np.random.default_rng(5)
    old = random_words(rng, 1 << 19, 2)
    new = old.copy()
    chosen = rng.random(old.size) < fraction
    new[chosen] += rng.choice(np.array([1, 65535, 2, 65534], np.uint16), int(chosen.sum()))
    bucket, header = Bucket(0, 0, 2, (Segment("a", 0, old.size),)), FrameHeader(1, 1, 2, 0)
    table = AddressTable(np.array([old.size]), np.array([0]))
    encoded = Encoder().delta(old, new, header, table, 0)
    assert encoded is not None
    assert HEADER.unpack_from(encoded.frame)[4] & 1  # the gap plane is compressed
    frame = open_frame(encoded.frame, bucket=bucket, header=header)
    assert frame.apply(old, table) == encoded.digest_delta
    assert np.array_equal(old, new)


def test_a_plane_that_is_nearly_one_byte_still_goes_through_zstds_search() -> None:
    """Whole rows that changed: gaps are zeros with a few skips at equal distances, which repeats describe best."""
    old = np.zeros(1 << 19, np.uint16)
    new = old.reshape(512, 1024).copy()
    new[::8] = 1
    header, table = FrameHeader(1, 1, 2, 0), AddressTable(np.array([old.size]), np.array([0]))
    encoded = Encoder().delta(old, new.reshape(-1), header, table, 0)
    assert encoded is not None
    assert len(encoded.frame) < 2000
