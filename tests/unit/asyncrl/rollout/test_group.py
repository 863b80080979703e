"""A group's last token, the end of its renewals and its put, in every order that the event loop can make of them."""

import asyncio
from collections.abc import Generator
from typing import cast

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.rollout.episode import EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.group import GroupPlayer, GroupSettings
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.work import Work
from buffer import BufferConfig, ReplayBuffer, Span, Trajectory
from buffer.answers import Claim
from buffer.versions import pack
from tests.support.event_loop import in_event_loop


class Turns:
    """Awaiting it lets the event loop go round so many times."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __await__(self) -> Generator[None, None, None]:
        for _ in range(self._count):
            yield


class TimedPlayer:
    """Samples one token after some turns of the loop, and ends after some more."""

    async def cut(self, progress: Progress) -> None:
        raise AssertionError("nothing is at a server")

    def __init__(self, before: int, after: int) -> None:
        self._before, self._after = before, after

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        progress.builder.begin_row([1])
        await Turns(self._before * task.episode)
        progress.builder.append_sampled([5], [-0.5], [Span(pack(1, 7 - task.episode), 70, 1)])  # ever older
        await Turns(self._after)
        return progress.finish(Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})


@pytest.mark.parametrize("before", range(5))
@in_event_loop
async def test_no_group_is_lost_between_its_last_token_and_the_end_of_its_renewals(before: int) -> None:
    buffer = ReplayBuffer.in_memory("run", BufferConfig())
    buffer.recover("nonce", None, number=0, limit=5, groups_per_version=10)
    row = PromptRow(0, "test", ({"role": "user", "content": "1"},), None, {})
    for after in range(8):
        claim = buffer.reserve("worker")
        assert isinstance(claim, Claim)
        settings = GroupSettings(renew_every_s=15.0, tell_after_s=0.0)
        player = GroupPlayer(cast(EpisodePlayer, TimedPlayer(before, after)), Slots(8), settings)
        playing = asyncio.create_task(player.play(Work(buffer, claim, row, "train", 3)))
        done, _ = await asyncio.wait((playing,), timeout=5.0)
        assert done, f"a group that ends {after} turns of the loop after its last token is stuck"
        assert playing.result() == "ready"


@in_event_loop
async def test_a_group_that_is_in_soon_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer.in_memory("run", BufferConfig())
    buffer.recover("nonce", None, number=0, limit=5, groups_per_version=10)
    row = PromptRow(0, "test", ({"role": "user", "content": "1"},), None, {})
    claim = buffer.reserve("worker")
    assert isinstance(claim, Claim)
    monkeypatch.delattr("buffer.worker_side.WorkerSide.renew")
    settings = GroupSettings(renew_every_s=2000.0, tell_after_s=1000.0)
    player = GroupPlayer(cast(EpisodePlayer, TimedPlayer(2, 2)), Slots(8), settings)
    assert await player.play(Work(buffer, claim, row, "train", 3)) == "ready"


@pytest.mark.parametrize("before", range(3))
@in_event_loop
async def test_whenever_a_group_is_halted_it_is_in_or_given_back_and_its_tokens_are_accounted(before: int) -> None:
    row = PromptRow(0, "test", ({"role": "user", "content": "1"},), None, {})
    outcomes = set()
    for turns in range(40):
        buffer = ReplayBuffer.in_memory("run", BufferConfig())
        buffer.recover("nonce", None, number=0, limit=9, groups_per_version=10)
        claim = buffer.reserve("worker")
        assert isinstance(claim, Claim)
        settings = GroupSettings(renew_every_s=15.0, park_every_s=0.0005, tell_after_s=0.0)
        player = GroupPlayer(cast(EpisodePlayer, TimedPlayer(before, 4)), Slots(8), settings)
        playing = asyncio.create_task(player.play(Work(buffer, claim, row, "train", 3)))
        await Turns(turns)
        player.halt()
        outcomes.add(outcome := await playing)
        counts, ledger = buffer.counts(), buffer.audit().tokens
        assert (counts["ready"], counts["waiting"]) == ((1, 0) if outcome == "ready" else (0, 1)), turns
        assert ledger.problems() == []
        assert ledger.held == ledger.sampled, "what was sampled is in the group or parked"
        assert buffer.audit().by_reason == ({} if outcome == "ready" else {"abandoned": 1})
    assert outcomes == {"ready", "halted"}


class ScoredPlayer(TimedPlayer):
    """Every answer has the reward that its episode's number picks."""

    def __init__(self, rewards: list[float]) -> None:
        super().__init__(0, 0)
        self._rewards = rewards

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        progress.builder.begin_row([1])
        progress.builder.append_sampled([5], [-0.5], [Span(pack(1, 0), 70, 1)])
        reward = Reward(self._rewards[task.episode])
        return progress.finish(reward, finish_reason="stop", num_turns=1, extra_info={})


@pytest.mark.parametrize(
    ("rewards", "filters", "outcome"),
    [([1.0, 1.0], True, "filtered"), ([1.0, 0.0], True, "ready"), ([1.0, 1.0], False, "ready")],
)
@in_event_loop
async def test_a_group_that_teaches_nothing_gives_its_place_to_another_prompt(
    rewards: list[float], filters: bool, outcome: str
) -> None:
    buffer = ReplayBuffer.in_memory("run", BufferConfig())
    buffer.recover("nonce", None, number=0, limit=0, groups_per_version=1)
    row = PromptRow(0, "test", ({"role": "user", "content": "1"},), None, {})
    claim = buffer.reserve("worker")
    assert isinstance(claim, Claim)
    assert not isinstance(buffer.reserve("worker"), Claim)  # the window holds one
    settings = GroupSettings(renew_every_s=15.0, filters_zero_variance=filters)
    player = GroupPlayer(cast(EpisodePlayer, ScoredPlayer(rewards)), Slots(8), settings)
    assert await player.play(Work(buffer, claim, row, "train", 2)) == outcome
    assert player.counts[f"groups_{outcome}"] == 1
    assert isinstance(buffer.reserve("worker"), Claim) == (outcome == "filtered")
    if outcome == "filtered":
        assert player.counts["zero_variance_at_1"] == 1
        assert buffer.usage().reasons["zero_variance"] == 1
