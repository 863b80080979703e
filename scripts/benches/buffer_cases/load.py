"""The groups that every contender moves, as the buffer's own objects."""

from collections.abc import Sequence

import numpy as np

from buffer import Group, Row, Span, Trajectory
from scripts.benches.peers.groups import READY_MADE, TRAJECTORIES, Arrays, make_groups

__all__ = ["READY_MADE", "TRAJECTORIES", "Arrays", "group_of", "make_groups", "trajectories_of"]


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
