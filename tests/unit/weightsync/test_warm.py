"""After warming up, publishing compiles nothing more."""

import numpy as np
import pytest

from weightsync import diff, diff_packed, huffman, plane_sums
from weightsync.codec import Encoder, FrameHeader
from weightsync.digest import digest
from weightsync.layout import AddressTable
from weightsync.planes import Scratch, apply_planes, check_planes, encode_planes
from weightsync.vector import CAN_PACK, HAVE_NUMBA
from weightsync.warm import compile_kernels

KERNELS = {diff: ("encode_by_bits", "pack", "count_changed", "apply", "digest_words"), plane_sums: ("sums",)}
SIZES = (1 << 14, diff.LEAST_PACKED_WORDS)


def num_compiled() -> dict[str, int]:
    found = {name: len(getattr(module, name).signatures) for module, names in KERNELS.items() for name in names}
    if CAN_PACK:
        found["packed"] = len(diff_packed.encode.signatures)
    return found | {"_blocks": len(huffman._blocks.signatures)}


@pytest.mark.skipif(not HAVE_NUMBA, reason="kernels are numba's")
@pytest.mark.parametrize("width", [2, 4])
def test_nothing_is_left_to_compile(width: int) -> None:
    compile_kernels([width], bucket_words=max(SIZES))
    before = num_compiled()
    assert min(before.values()) > 0
    for size in SIZES:
        _publish(width, size)
    assert num_compiled() == before


def _publish(width: int, size: int) -> None:
    rng = np.random.default_rng(0)
    old = rng.integers(0, 1 << 8, size).astype(f"<u{width}")
    new = np.where(rng.random(size) < 0.5, old + 1, old).astype(f"<u{width}")
    table = AddressTable(np.array([size], np.int64), np.zeros(1, np.int64))
    planes = encode_planes(old, new, table, Scratch(share=0.5))
    assert huffman.has_runs(planes.gaps)  # so that the encoder asks for the kernels of literals, too
    assert Encoder().delta(old, new, FrameHeader(0, 0, 1, 0), table, digest(old, 0)) is not None
    check_planes(planes, size, "")
    apply_planes(old, planes, table)
    np.testing.assert_array_equal(old, new)
