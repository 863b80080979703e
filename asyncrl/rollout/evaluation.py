"""Play held-out prompts on servers that nobody updates, and score them: `asyncrl eval`.

Evaluations during a run travel through the buffer instead (buffer.open_evaluation), played by the run's workers.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.rollout.episode import EpisodeFailed, EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.reservation import Prompts
from buffer import Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """One answer, for people."""

    data_source: str
    index: int
    prompt_text: str
    response_text: str
    reward: float | None


@dataclass(frozen=True)
class Scores:
    """What an evaluation found.

    Attributes:
        prompts: data source and answers of each prompt that has some, in their order.
        num_scored: answers with a reward, by data source.
        num_unscored: answers whose reward failed; they are in no mean.
        failed: episodes without an answer, by reason.
        finish_reasons: answers by how they ended.
        mean_length: sampled tokens of an answer.
        samples: the first answers, in order of prompts.
    """

    prompts: Sequence[tuple[str, Sequence[Trajectory]]]
    num_scored: Mapping[str, int]
    num_unscored: int
    failed: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    mean_length: float
    samples: tuple[Sample, ...]


async def evaluate(player: EpisodePlayer, prompts: Prompts, *, slots: int, num_samples: int = 0) -> Scores:
    """Play every prompt `prompts.group_size` times, `slots` episodes at once, and score the answers.

    Raises:
        ServerError: no episode could be finished; the message has the first reason.
    """
    tasks = ((index, episode) for index in range(len(prompts.rows)) for episode in range(prompts.group_size))
    played: dict[tuple[int, int], tuple[str, int, Trajectory]] = {}
    failed: list[EpisodeFailed] = []

    async def play_some(shared: Iterator[tuple[int, int]]) -> None:
        for ordinal, episode in shared:
            row = await waits.in_thread(prompts.row, ordinal)
            task = EpisodeTask(row, "eval", ordinal, episode, may_start_on=lambda version: True, with_text=True)
            try:
                trajectory = await player.play(task, Progress(), PromptMemo())
            except EpisodeFailed as error:
                log.warning("prompt %d of the evaluation: %s", row.index, error)
                failed.append(error)
            else:
                played[ordinal, episode] = (row.data_source, row.index, trajectory)

    async with asyncio.TaskGroup() as group:
        for _ in range(slots):
            group.create_task(play_some(tasks))
    if not played:
        reason = str(failed[0]) if failed else "there is no held-out prompt; set data.val_files"
        raise ServerError(f"not one of {len(failed)} held-out episodes could be played: {reason}")
    return _scores({place: played[place] for place in sorted(played)}, failed, num_samples)


def _scores(
    places: Mapping[tuple[int, int], tuple[str, int, Trajectory]], failed: list[EpisodeFailed], num_samples: int
) -> Scores:
    """Of answers by prompt and episode, in order."""
    played = list(places.values())
    by_prompt: dict[int, tuple[str, list[Trajectory]]] = {}
    for (ordinal, _), (source, _, trajectory) in places.items():
        by_prompt.setdefault(ordinal, (source, []))[1].append(trajectory)
    scored = Counter(source for source, _, trajectory in played if trajectory.reward is not None)
    samples = (
        Sample(
            source,
            index,
            str(trajectory.extra_info["prompt_text"]),
            str(trajectory.extra_info["response_text"]),
            trajectory.reward,
        )
        for source, index, trajectory in played[:num_samples]
    )
    return Scores(
        prompts=tuple(by_prompt.values()),
        num_scored=dict(sorted(scored.items())),
        num_unscored=sum(trajectory.reward is None for _, _, trajectory in played),
        failed=Counter(error.reason for error in failed),
        finish_reasons=Counter(trajectory.finish_reason for _, _, trajectory in played),
        mean_length=sum(trajectory.num_sampled for _, _, trajectory in played) / len(played),
        samples=tuple(samples),
    )
