"""The tokens of a soak's groups: a function of the ordinal, so that who reads a group can tell whether it is right."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from buffer import Group, Row, Span, Trajectory
from buffer.partials import UNFINISHED
from tests.support.soak.settings import Prompt, Settings

DIGEST = 0x50A4


def trajectory(settings: Settings, prompt: Prompt, index: int, spans: Sequence[Span]) -> Trajectory:
    """The first tokens of an episode, as many as the spans cover; finished if that is all of them."""
    num_sampled = sum(span.num_tokens for span in spans)
    tokens = _tokens(settings, prompt, index)[: prompt.num_prompt_tokens + num_sampled]
    mask = np.arange(len(tokens)) >= prompt.num_prompt_tokens
    row = Row(
        token_ids=tokens,
        mask=mask,
        logprobs=_logprobs(tokens, mask),
        spans=tuple(spans),
        num_prompt_tokens=prompt.num_prompt_tokens,
    )
    if num_sampled < prompt.lengths[index]:
        return Trajectory(rows=(row,), reward=None, reward_error=UNFINISHED, finish_reason="abort")
    reward = prompt.rewards[index]
    return Trajectory(rows=(row,), reward=reward, reward_error=None if reward is not None else "no verdict")


def problems(settings: Settings, prompt: Prompt, group: Group) -> list[str]:
    """What is wrong with a whole group."""
    if len(group.trajectories) != settings.group_size or group.data_source != prompt.data_source:
        return [f"{group.gid}: {len(group.trajectories)} trajectories of source {group.data_source!r}"]
    return [
        f"{group.gid}: trajectory {index} is not what ordinal {prompt.ordinal} stands for"
        for index, found in enumerate(group.trajectories)
        if found.num_sampled != prompt.lengths[index]
        or found != trajectory(settings, prompt, index, found.rows[0].spans)
    ]


def _tokens(settings: Settings, prompt: Prompt, index: int) -> npt.NDArray[np.uint32]:
    rng = np.random.Generator(np.random.Philox(key=[settings.seed, prompt.ordinal * settings.group_size + index]))
    count = prompt.num_prompt_tokens + prompt.lengths[index]
    return rng.integers(0, 1 << 32, count, dtype=np.uint32)


def _logprobs(tokens: npt.NDArray[np.uint32], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    return np.where(mask, -(tokens % 1024).astype(np.float32) / 1024 - 1, 0).astype(np.float32)
