"""Small groups for tests of the buffer."""

from collections.abc import Sequence

import numpy as np

from buffer import Claim, Group, Row, Span, Trajectory
from buffer.partials import UNFINISHED, PartialEpisode, Partials

DIGEST = 0xFEDCBA9876543210


def row(versions: Sequence[int], *, num_prompt_tokens: int = 2, tokens_per_version: int = 3) -> Row:
    """A row that sampled some tokens under each of the versions in turn."""
    sampled = len(versions) * tokens_per_version
    mask = np.arange(num_prompt_tokens + sampled) >= num_prompt_tokens
    return Row(
        token_ids=np.arange(len(mask), dtype=np.uint32) + 7,
        mask=mask,
        logprobs=np.where(mask, -0.25, 0.0).astype(np.float32),
        spans=tuple(Span(version, DIGEST, tokens_per_version) for version in versions),
        num_prompt_tokens=num_prompt_tokens,
    )


def group(ordinal: int, attempt: int, versions: Sequence[int], rewards: Sequence[float | None] = (1.0, 0.0)) -> Group:
    """One trajectory per reward; all of them sampled under the same versions."""
    trajectories = tuple(
        Trajectory(rows=(row(versions),), reward=reward, reward_error=None if reward is not None else "no verdict")
        for reward in rewards
    )
    return Group(ordinal=ordinal, attempt=attempt, data_source="arithmetic", trajectories=trajectories)


def group_for(claim: Claim, *versions: int, rewards: Sequence[float | None] = (1.0, 0.0)) -> Group:
    """The group that a claim asks for."""
    return group(claim.ordinal, claim.attempt, versions, rewards)


def partials(*versions: int) -> Partials:
    """A group of which one episode is done and the other is not."""
    begun = Trajectory(rows=(row(versions),), reward=None, reward_error=UNFINISHED, finish_reason="abort")
    done = Trajectory(rows=(row(versions),), reward=1.0)
    return Partials((PartialEpisode(0, done, True), PartialEpisode(1, begun, False, {"turn": 1})))
