"""The digest's terms in numpy: pieces, blocks of addresses and starts below zero give the sum that is written out."""

import numpy as np
import pytest

from tests.support.weights import random_words
from weightsync import mix64_numpy
from weightsync.layout import Words
from weightsync.mix64_numpy import Terms

M64 = (1 << 64) - 1


def slow_term(address: int, word: int) -> int:
    x = (address << 16) + word
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def slow_sum(addresses: list[int], words: Words) -> int:
    if words.dtype.itemsize == 4:
        addresses = [address + half for address in addresses for half in (0, 1)]
        words = words.view(np.uint16)
    return sum(slow_term(*pair) for pair in zip(addresses, words.tolist(), strict=True)) & M64


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("start", [0, 5, (1 << 14) - 3, (1 << 47) + 12_345])
@pytest.mark.parametrize("most", [1, 50, 1 << 30])
def test_a_run_crosses_blocks_of_addresses_and_pieces_of_any_size(width: int, start: int, most: int) -> None:
    words = random_words(np.random.default_rng(width), 300, width)
    step = 2 if width == 4 else 1
    expected = slow_sum([start + i * step for i in range(300)], words)
    assert Terms(most).digest_words(words, start) == expected
    assert Terms(most).digest_at(start + np.arange(300) * step, words) == expected


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("start", [-700, 0, (1 << 47) + 1])
def test_a_gain_is_the_sum_after_less_the_sum_before(width: int, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix64_numpy, "CHUNK", 64)
    rng = np.random.default_rng(width)
    positions = np.sort(rng.choice(40_000, 300, replace=False)) + 1_000
    before, after = random_words(rng, 300, width), random_words(rng, 300, width)
    step = 2 if width == 4 else 1
    addresses = [start + int(position) * step for position in positions]
    expected = (slow_sum(addresses, after) - slow_sum(addresses, before)) & M64
    assert Terms(300).gain(positions, before, after, start) == expected
