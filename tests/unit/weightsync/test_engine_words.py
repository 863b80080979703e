"""What the loader computes on an engine's words: numba's kernels and torch's operations give the same bits."""

import numpy as np
import pytest
import torch

from tests.support.weights import random_words
from weightsync import diff
from weightsync.engine_words import digest_at, preview, put, to_engine
from weightsync.layout import address_step


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 31, 33, 700])
def test_a_preview_writes_nothing_and_says_what_put_then_makes(
    width: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(count + width)
    storage, shift, start = random_words(rng, 2000, width), 100, 7 << 20
    positions = np.sort(rng.choice(1900, count, replace=False)).astype(np.int64)
    differences = random_words(rng, count, width)
    found = []
    for with_numba in (True, False):
        if with_numba and not diff.HAVE_NUMBA:
            pytest.skip("numba is not installed")
        monkeypatch.setattr(diff, "HAVE_NUMBA", with_numba)
        words = to_engine(storage.copy(), torch.device("cpu"))
        at, new, gain = preview(
            *(words, torch.from_numpy(positions), to_engine(differences, words.device)), shift=shift, start=start
        )
        assert np.array_equal(words.numpy().view(storage.dtype), storage)
        put(words, at, new)
        addresses = torch.from_numpy(start + positions * address_step(width))
        before = to_engine(storage[positions + shift], words.device)
        assert gain == (digest_at(addresses, new) - digest_at(addresses, before)) % (1 << 64)
        expected = storage.copy()
        expected[positions + shift] += differences
        assert np.array_equal(words.numpy().view(storage.dtype), expected)
        found.append((at.tolist(), new.tolist(), gain))
    assert found[0] == found[1]
