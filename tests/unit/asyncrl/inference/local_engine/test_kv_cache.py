"""Blocks stay their rows' whatever comes and goes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.inference.local_engine.kv_cache import NARROW, WIDE, KVCache
from asyncrl.inference.local_engine.model_config import ModelConfig


def cache_of(kv_heads: int = 1, head_dim: int = 128, layers: int = 2) -> KVCache:
    config = ModelConfig.from_dict(
        {
            "model_type": "llama",
            "hidden_size": kv_heads * head_dim,
            "num_hidden_layers": layers,
            "num_attention_heads": kv_heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "intermediate_size": 8,
            "vocab_size": 8,
        }
    )
    return KVCache(config, max_rows=8, max_length=320, dtype=torch.float32)


def stamp(cache: KVCache, row: int, name: int) -> None:
    """Writes (name, level) into all of a row's blocks."""
    for level, block in enumerate(cache.blocks_of(row)):
        for store in (cache.keys, cache.values):
            store[:, block] = 1000 * name + level


def stamps(cache: KVCache, row: int) -> list[list[float]]:
    blocks = cache.blocks_of(row)
    return [[float(layer[b].min()) for b in blocks] for store in (cache.keys, cache.values) for layer in store]


@given(st.lists(st.tuples(st.sampled_from(["append", "remove", "extend"]), st.integers(0, 10**6)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_history_leaves_every_row_its_own_blocks_dense_in_the_pool(history: list[tuple[str, int]]) -> None:
    cache, rows, lengths, serial = cache_of(), [], [], 0
    for action, number in history:
        if action == "append" and len(rows) < 8:
            lengths.append(number % 200 + 1)
            rows.append(serial := serial + 1)
            assert cache.append(lengths[-1]) == len(rows) - 1
            stamp(cache, len(rows) - 1, serial)
        elif action == "remove" and rows:
            row = number % len(rows)
            cache.remove(row)
            rows[row], lengths[row] = rows[-1], lengths[-1]
            rows.pop(), lengths.pop()
        elif action == "extend" and rows:
            row = number % len(rows)
            if lengths[row] <= 320 - 64:
                positions = np.array(lengths) - 1
                positions[row] = lengths[row] = -(-lengths[row] // 64) * 64
                positions[np.arange(len(rows)) != row] |= 1  # nobody else stands at the start of a block
                cache.extend(positions)
                lengths[row] += 1
                stamp(cache, row, rows[row])
        assert cache.num_rows == len(rows)
        owners = sorted(zip(*(array.tolist() for array in cache.owners()), strict=True))
        assert owners == [(row, level) for row, length in enumerate(lengths) for level in range(-(-length // 64))]
        for row, name in enumerate(rows):
            expected = [1000.0 * name + level for level in range(-(-lengths[row] // 64))]
            assert stamps(cache, row) == [expected] * 4
            for level, block in enumerate(cache.blocks_of(row)):
                assert cache.owners()[0][block] == row
                assert cache.owners()[1][block] == level


def test_a_block_is_wider_for_models_with_few_key_value_numbers() -> None:
    assert cache_of(kv_heads=2, head_dim=16).width == WIDE
    assert cache_of(kv_heads=2, head_dim=64).width == NARROW


def test_memory_grows_by_doubling_and_is_given_back() -> None:
    cache = cache_of()
    assert cache.num_bytes() == 0
    cache.append(1)
    one = cache.num_bytes()
    for _ in range(3):
        cache.append(200)
    assert cache.num_bytes() == 2 * one
    for row in reversed(range(4)):
        cache.remove(row)
    cache.release()
    assert cache.num_bytes() == 0
    cache.append(1)
    assert cache.num_bytes() == one


def test_releasing_under_live_rows_is_our_own_bug() -> None:
    cache = cache_of()
    cache.append(1)
    with pytest.raises(AssertionError):
        cache.release()


def test_a_row_with_values_that_are_not_finite_leaves_zeros_behind() -> None:
    cache = cache_of()
    cache.append(100)
    blocks = cache.blocks_of(0)
    for store in (cache.keys, cache.values):
        store[:, blocks] = float("nan")
    cache.zero(0)
    cache.remove(0)
    assert all(bool(torch.isfinite(store).all()) for store in (cache.keys, cache.values))


@pytest.mark.parametrize("length", [5, 100])
def test_content_is_copied_to_several_rows_at_once(length: int) -> None:
    cache = cache_of()
    for _ in range(3):
        cache.append(length)
    generator = torch.Generator().manual_seed(0)
    for store in (cache.keys, cache.values):
        store.copy_(torch.randn(store.shape, generator=generator))
    cache.write(np.concatenate([cache.blocks_of(1), cache.blocks_of(2)]), cache.read(cache.blocks_of(0), length))
    size = length if length < cache.width else cache.width
    for row in (1, 2):
        for mine, first in zip(cache.blocks_of(row), cache.blocks_of(0), strict=True):
            assert torch.equal(cache.keys[:, mine, :, :size], cache.keys[:, first, :, :size])
            assert torch.equal(cache.values[:, mine, :, :size], cache.values[:, first, :, :size])
