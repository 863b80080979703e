"""What the loader computes on an engine's words: numba's kernels, numpy and torch give the same bits."""

import numpy as np
import pytest
import torch

from tests.support.weights import random_words
from weightsync import engine_words
from weightsync.digest import digest_at
from weightsync.engine_words import to_engine, unsigned
from weightsync.layout import address_step


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 33, 700])
def test_a_preview_writes_nothing_and_says_what_adding_would_make(width: int, count: int) -> None:
    rng = np.random.default_rng(count + width)
    storage, shift, start = random_words(rng, 2000, width), 100, 7 << 20
    positions = np.sort(rng.choice(1900, count, replace=False)).astype(np.int64)
    differences = random_words(rng, count, width)
    expected = storage.copy()
    expected[positions + shift] += differences
    addresses = start + positions * address_step(width)
    gain = digest_at(addresses, expected[positions + shift]) - digest_at(addresses, storage[positions + shift])
    device = to_engine(storage.copy(), torch.device("cpu"))
    at, new, gained = engine_words.preview(
        *(device, torch.from_numpy(positions), to_engine(differences, device.device)), shift=shift, start=start
    )
    assert gained == gain % (1 << 64)
    assert np.array_equal(unsigned(device), storage)
    device.index_copy_(0, at, new)
    assert np.array_equal(unsigned(device), expected)
