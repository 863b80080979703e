"""Scoring held-out prompts on servers that nobody updates."""

from typing import Any

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Message, Reward, StepResult
from asyncrl.errors import ServerError
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.fleet import Fleet, FleetLimits
from asyncrl.rollout.episode import EpisodePlayer
from asyncrl.rollout.evaluation import Scores, evaluate
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.reservation import Prompts
from tests.support.char_chat import CharChat
from tests.support.episode_settings import episode_settings
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB, FakeServer, running_fake

ROWS = [PromptRow(i, "odd" if i % 2 else "even", ({"role": "user", "content": str(i)},), None, {}) for i in range(4)]


class ByIndex:
    """The reward is the row's index; that of row 2 fails."""

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        self._row = row
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        failed = self._row.index == 2
        reward = Reward(None, "timed out") if failed else Reward(float(self._row.index))
        return StepResult(done=True, reward=reward)


async def scores_on(server: FakeServer, rows: list[PromptRow] = ROWS, **wanted: Any) -> Scores:
    fleet = Fleet(FixedBoard([server.url]), lambda url: ServerClient(url, vocab_size=VOCAB), FleetLimits(5.0, 0.2))
    await fleet.refresh()
    settings = episode_settings(max_attempts=1)
    player = EpisodePlayer(CharChat(), fleet, ByIndex, settings)
    prompts = Prompts(rows, PromptOrder(max(1, len(rows)), 0, False), 2)
    try:
        return await evaluate(player, prompts, slots=3, **wanted)
    finally:
        await fleet.close()


@in_event_loop
async def test_rewards_are_averaged_by_source_and_failed_ones_are_counted_apart() -> None:
    with running_fake() as server:
        scores = await scores_on(server, num_samples=3)
    rewards = [(source, [answer.reward for answer in answers]) for source, answers in scores.prompts]
    assert rewards == [("even", [0.0, 0.0]), ("odd", [1.0, 1.0]), ("even", [None, None]), ("odd", [3.0, 3.0])]
    assert dict(scores.num_scored) == {"even": 2, "odd": 4}
    assert scores.num_unscored == 2
    assert sum(scores.finish_reasons.values()) == 8
    assert scores.mean_length > 0
    assert [(sample.index, sample.prompt_text) for sample in scores.samples] == [
        (0, "user: 0"),
        (0, "user: 0"),
        (1, "user: 1"),
    ]


@in_event_loop
async def test_an_episode_that_could_not_be_played_is_no_wrong_answer() -> None:
    with running_fake(refused=CharChat().render(ROWS[1].messages)) as server:
        scores = await scores_on(server)
    assert dict(scores.failed) == {"request_refused": 2}
    assert sum(scores.num_scored.values()) + scores.num_unscored == 6


@in_event_loop
async def test_without_one_answer_there_is_no_score() -> None:
    with running_fake() as server:
        server.script.extend([(400, {"error": "too long"})] * 40)
        with pytest.raises(ServerError, match="too long"):
            await scores_on(server)
        with pytest.raises(ServerError, match=r"data\.val_files"):
            await scores_on(server, rows=[])
