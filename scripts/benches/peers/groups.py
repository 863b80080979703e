"""The groups that every contender moves, as plain arrays: 8 trajectories of 512 to 4096 tokens, the same from a seed.

Imported by our own side and by the peers' scripts, which run in other environments: numpy alone is needed.
"""

from typing import Any

import numpy as np

TRAJECTORIES = 8
SHORTEST, LONGEST = 512, 4096
READY_MADE = 16
"""Groups that a producer makes before the clock runs, and puts in turn."""

Arrays = tuple[Any, Any, Any]
"""int32 tokens, float32 logprobs and uint8 mask of one trajectory: 9 bytes a token."""


def make_groups(count: int, shortest: int = SHORTEST, longest: int = LONGEST, seed: int = 0) -> list[list[Arrays]]:
    """Groups in the order of draws that has been used for every figure published so far."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(count):
        lengths = rng.integers(shortest, longest + 1, TRAJECTORIES)
        groups.append(
            [
                (
                    rng.integers(0, 150000, length, dtype=np.int32),
                    rng.standard_normal(length, dtype=np.float32),
                    np.ones(length, np.uint8),
                )
                for length in lengths
            ]
        )
    return groups
