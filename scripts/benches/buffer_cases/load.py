"""The groups that every contender moves: 8 trajectories of 512 to 4096 tokens, the same from the same seed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from buffer import Group, Row, Span, Trajectory

TRAJECTORIES = 8
SHORTEST, LONGEST = 512, 4096
READY_MADE = 16
"""Groups that a producer makes before the clock runs, and puts in turn."""

Arrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.uint8]]
"""Tokens, logprobs and mask of one trajectory: 9 bytes a token."""


def make_groups(count: int, shortest: int = SHORTEST, longest: int = LONGEST, seed: int = 0) -> list[list[Arrays]]:
    """Groups as plain arrays. The order of the draws is that of the peers' scripts, so that all move the same."""
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


def mean_bytes(groups: Sequence[Sequence[Arrays]]) -> float:
    """Bytes of the arrays of a group."""
    return sum(array.nbytes for group in groups for one in group for array in one) / len(groups)


def trajectories_of(group: Sequence[Arrays], version: int) -> tuple[Trajectory, ...]:
    """The same group as the buffer's own objects, all of it sampled under one version."""
    return tuple(
        Trajectory(
            rows=(
                Row(
                    token_ids=tokens.view(np.uint32),
                    mask=mask.view(np.bool_),
                    logprobs=logprobs,
                    spans=(Span(version, 7, len(tokens)),),
                    num_prompt_tokens=0,
                ),
            ),
            reward=float(index % 2),
        )
        for index, (tokens, logprobs, mask) in enumerate(group)
    )


def group_of(ordinal: int, attempt: int, trajectories: tuple[Trajectory, ...]) -> Group:
    """A ready-made group under the ordinal that a claim asks for."""
    return Group(ordinal, attempt, "synthetic", trajectories)
