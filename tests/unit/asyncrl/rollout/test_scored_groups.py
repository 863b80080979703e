"""A group is handed in with its teachers' scores, whoever finished its episodes; held-out ones are not scored."""

from collections import Counter
from typing import cast

import pytest

from asyncrl.config import TeacherConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.rollout.episode import EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.group import GroupPlayer, GroupSettings
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.seeds import Stream
from asyncrl.rollout.teacher import Teacher
from asyncrl.rollout.teachers import Teachers
from asyncrl.rollout.work import Work
from buffer import BufferConfig, ReplayBuffer, Span, Trajectory
from buffer.answers import Claim, Leased
from buffer.partials import PartialEpisode, Partials
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.scripted_teacher import ScriptedTeacher, logprob

ROW = PromptRow(0, "test", ({"role": "user", "content": "1"},), None, {})
SPANS = [Span(pack(0, 0), 70, 1)]


class Player:
    """Samples one token."""

    async def cut(self, progress: Progress) -> None:
        raise AssertionError("nothing is at a server")

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        progress.builder.begin_row([1, 2])
        progress.builder.append_sampled([5], [-0.5], SPANS)
        return progress.finish(Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})


class Scene:
    """A buffer with one claim, and a player with one teacher."""

    def __init__(self, server: ScriptedTeacher) -> None:
        self.buffer = ReplayBuffer.in_memory("run", BufferConfig())
        self.buffer.recover("nonce", None, number=0, limit=5, groups_per_version=10)
        claim = self.buffer.reserve("worker")
        assert isinstance(claim, Claim)
        self.claim = claim
        config = TeacherConfig(name="big", urls=("http://teacher",), max_attempts=1)
        teachers = Teachers([Teacher(config, [server.as_client()], 1000, Counter())])
        settings = GroupSettings(renew_every_s=15.0)
        self.player = GroupPlayer(cast(EpisodePlayer, Player()), Slots(8), settings, teachers)

    async def handed_in(self, stream: Stream = "train") -> tuple[Trajectory, ...]:
        """The trajectories as the trainer gets them."""
        assert await self.player.play(Work(self.buffer, self.claim, ROW, stream, 2)) == "ready"
        leased = self.buffer.lease(1, 0, 1, 1)
        assert isinstance(leased, Leased)
        return self.buffer.fetch(leased.entries[0]).trajectories


@in_event_loop
async def test_every_answer_of_a_group_has_its_scores_when_it_is_handed_in() -> None:
    trajectories = await Scene(ScriptedTeacher()).handed_in()
    for trajectory in trajectories:
        assert trajectory.rows[0].columns["teacher/big/logprobs"].tolist() == [0, 0, logprob(5, 2)]


@in_event_loop
async def test_an_answer_that_an_earlier_owner_finished_is_scored_by_the_next() -> None:
    scene = Scene(ScriptedTeacher())
    done = await Player().play(cast(EpisodeTask, None), Progress(), PromptMemo())
    scene.buffer.park(scene.claim, Partials((PartialEpisode(0, done, done=True),)), "test")
    trajectories = await scene.handed_in()
    assert ["teacher/big/logprobs" in trajectory.rows[0].columns for trajectory in trajectories] == [True, True]


@in_event_loop
async def test_an_answer_that_its_teacher_did_not_score_is_handed_in_without_a_reward_and_counted() -> None:
    scene = Scene(ScriptedTeacher([ServerUnavailable("gone")] * 2))
    trajectories = await scene.handed_in()
    assert [trajectory.reward for trajectory in trajectories] == [None, None]
    assert scene.player.counts["rewards_failed"] == 2


@pytest.mark.parametrize("stream", ["eval"])
@in_event_loop
async def test_held_out_answers_are_not_scored(stream: Stream) -> None:
    server = ScriptedTeacher()
    await Scene(server).handed_in(stream)
    assert server.requests == []
