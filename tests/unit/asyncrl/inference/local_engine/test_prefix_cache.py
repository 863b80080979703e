"""Recent prompts within a budget."""

import torch

from asyncrl.inference.local_engine.prefix_cache import PrefixCache

BLOCKS = (torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 2, 8, 2))  # 256 bytes


def test_the_longest_unused_prompt_leaves_first_and_bytes_are_counted() -> None:
    cache = PrefixCache(3 * 260)
    keys = [cache.key("", [number]) for number in range(4)]
    for key in keys[:3]:
        cache.put(key, BLOCKS, torch.zeros(1))
    assert cache.get(keys[0]) is not None
    cache.put(keys[3], BLOCKS, torch.zeros(1))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]
    assert cache.num_bytes == 3 * 260
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_a_prompt_larger_than_the_budget_is_returned_but_not_kept() -> None:
    cache = PrefixCache(100)
    kept = cache.put(cache.key("", [1]), BLOCKS, torch.zeros(1))
    assert kept.num_bytes == 260
    assert len(cache) == 0


def test_an_extra_key_separates_equal_prompts() -> None:
    cache = PrefixCache(10**6)
    cache.put(cache.key("1.0", [1, 2]), BLOCKS, torch.zeros(1))
    assert cache.get(cache.key("1.1", [1, 2])) is None
    assert cache.get(cache.key("1.0", [1, 2])) is not None
