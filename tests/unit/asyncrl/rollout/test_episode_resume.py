"""Episodes that another worker began: what is kept of them, what goes on, and what starts over."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.envs.base import Message
from asyncrl.rollout.episode import EpisodeFailed, EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Halted, Progress
from buffer import Span, TrajectoryError
from buffer.partials import UNFINISHED, PartialEpisode
from tests.support.char_chat import END, CharChat
from tests.support.event_loop import in_event_loop
from tests.support.scripted_play import (
    ROW,
    SETTINGS,
    Play,
    ResumableEnvironment,
    ScriptedEnvironment,
    taken_over,
    travelled,
)
from tests.support.seeded_fleet import SeededFleet


@in_event_loop
async def test_an_answer_that_was_cut_goes_on_from_its_tokens_and_each_keeps_its_version() -> None:
    """B023: the oldest version is that of the first token, not that of the server which finished the answer."""
    parked = await Play(([15, 16], "abort"), version=7).parked()
    assert not parked.done
    assert (parked.trajectory.reward, parked.trajectory.reward_error) == (None, UNFINISHED)
    progress = taken_over(parked)
    assert (progress.builder.oldest_version, progress.num_sampled) == (7, 2), "known before the first request"
    play = Play(([17, END], "stop"), version=9)
    trajectory = await play.run(progress)
    (row,) = trajectory.rows
    assert row.token_ids.tolist() == [1, 11, 12, 13, 14, END, 1, 15, 16, 17, END]
    assert row.spans == (Span(7, 70, 2), Span(9, 90, 2))
    assert row.logprobs[7:].tolist() == [-0.5] * 4
    ((ids, sampling),) = play.fleet.asked
    assert (len(ids), sampling.max_new_tokens) == (9, 6), "the turn's budget counts what was parked"
    assert play.environment.heard == [("567", "stop")]
    assert (trajectory.num_turns, trajectory.reward) == (1, 0.5)
    assert play.player.counts["tokens_resumed"] == 2


@in_event_loop
async def test_a_whole_turn_that_was_not_answered_is_answered_without_a_request() -> None:
    for finish in ("stop", "length"):
        parked = await Play(([15, 16], finish)).parked()
        play = Play()
        trajectory = await play.run(taken_over(parked))
        assert play.fleet.asked == []
        assert play.environment.heard == [("56", finish)]
        assert trajectory.finish_reason == finish


@in_event_loop
async def test_an_environment_is_put_back_to_before_the_turn_that_was_being_sampled() -> None:
    environment = ResumableEnvironment("9", "8")
    parked = await Play(([15, END], "stop"), ([16], "abort"), environment=environment).parked()
    play = Play(([17, END], "stop"), ([18, END], "stop"), environment=ResumableEnvironment("none", "of", "these"))
    trajectory = await play.run(taken_over(parked))
    assert play.environment.heard == [("67", "stop"), ("8", "stop")], "the first turn was answered by the last owner"
    assert trajectory.num_turns == 3
    assert trajectory.rows[0].token_ids.tolist()[7:] == [15, END, 1, 19, END, 1, 16, 17, END, 1, 18, END, 1, 18, END]
    assert play.player.counts["partials_restarted"] == 0


@in_event_loop
async def test_an_episode_that_cannot_be_put_back_starts_over_with_no_token_of_older_weights() -> None:
    """B033: zero response tokens, one span, of the version it is played with."""
    parked = await Play(([15, END], "stop"), ([16], "abort"), replies=("9",), version=2).parked()
    assert parked.state is None
    play = Play(([17, END], "stop"), replies=(), version=4)
    trajectory = await play.run(taken_over(parked))
    assert len(play.fleet.asked[0][0]) == trajectory.rows[0].num_prompt_tokens, "zero tokens of the answer"
    assert trajectory.rows[0].spans == (Span(4, 40, 2),)
    assert play.player.counts["partials_restarted"] == 1
    assert play.player.counts["tokens_resumed"] == 0


@in_event_loop
async def test_another_prompt_than_the_parked_one_starts_over() -> None:
    parked = await Play(([15, 16], "abort")).parked()
    play = Play(([17, END], "stop"))
    play.task = replace(play.task, row=replace(ROW, messages=({"role": "user", "content": "4321"},)))
    trajectory = await play.run(taken_over(parked))
    assert trajectory.rows[0].token_ids.tolist() == [1, 14, 13, 12, 11, END, 1, 17, END]
    assert play.player.counts["partials_restarted"] == 1


class Gone(ResumableEnvironment):
    """What its snapshot stands for died with the worker that took it."""

    async def restore(self, row: object, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        raise ConnectionError("the sandbox is gone")


class NotNow(ResumableEnvironment):
    """Has the method, but nothing to come back to."""

    def snapshot(self) -> None:
        return None


@pytest.mark.parametrize("make", [Gone, NotNow])
@in_event_loop
async def test_an_environment_that_is_not_restored_starts_over(make: type[ResumableEnvironment]) -> None:
    parked = await Play(([15, END], "stop"), ([16], "abort"), environment=make("9")).parked()
    play = Play(([17, END], "stop"), environment=make())
    assert (await play.run(taken_over(parked))).num_turns == 1
    assert play.player.counts["partials_restarted"] == 1


@in_event_loop
async def test_a_snapshot_that_is_no_json_fails_the_group_and_names_the_field() -> None:
    class Wrong(ResumableEnvironment):
        def snapshot(self) -> Mapping[str, object]:
            return {"tool": {"handle": object()}}

    with pytest.raises(EpisodeFailed, match=r"tool\.handle") as caught:
        await Play(environment=Wrong()).run()
    assert caught.value.reason == "environment_failed"


@in_event_loop
async def test_a_finished_sibling_is_taken_as_it_is() -> None:
    play, progress = Play(([15, END], "stop")), Progress()
    finished = await play.run(progress)
    parked = travelled(progress)
    assert parked.done
    again = Play()
    assert await again.run(taken_over(parked)) == finished
    assert again.fleet.asked == []


@in_event_loop
async def test_what_was_taken_over_and_not_begun_is_parked_as_it_was() -> None:
    environment = ResumableEnvironment("9")
    parked = await Play(([15, END], "stop"), ([16], "abort"), environment=environment).parked()
    again = travelled(taken_over(parked))
    assert (again.trajectory, again.state) == (parked.trajectory, parked.state)


def test_an_episode_without_a_sampled_token_is_not_parked() -> None:
    progress = Progress()
    assert progress.partial(0) is None
    progress.builder.begin_row([1, 2])
    assert progress.partial(0) is None


@in_event_loop
async def test_a_parked_episode_that_does_not_say_where_its_turn_begins_is_refused() -> None:
    parked = await Play(([15, 16], "abort")).parked()
    for info in ({}, {"turn_start": 99, "answered": None}, {"turn_start": 7, "answered": "abort"}):
        broken = PartialEpisode(1, replace(parked.trajectory, extra_info=info), done=False)
        progress = Progress()
        with pytest.raises(TrajectoryError, match="its last turn begins at"):
            progress.take(broken)
        assert (progress.is_resumed, progress.num_sampled) == (False, 0)


@pytest.mark.parametrize("ordinal", range(4))
@in_event_loop
async def test_wherever_it_is_cut_a_resumed_episode_equals_the_uncut_one(ordinal: int) -> None:
    task = EpisodeTask(ROW, "train", ordinal, 1, may_start_on=lambda version: True)

    def player(progress: Progress, environment: ScriptedEnvironment, cut: int | None = None) -> EpisodePlayer:
        return EpisodePlayer(CharChat(), SeededFleet(progress, cut), lambda: environment, SETTINGS)

    progress, environment = Progress(), ResumableEnvironment("9", "8")
    whole = await player(progress, environment).play(task, progress, PromptMemo())
    assert whole.num_turns == 3
    for cut in range(1, whole.num_sampled):
        progress, first = Progress(), ResumableEnvironment("9", "8")
        with pytest.raises(Halted):
            await player(progress, first, cut).play(task, progress, PromptMemo())
        resumed, second = taken_over(travelled(progress)), ResumableEnvironment("9", "8")
        trajectory = await player(resumed, second).play(task, resumed, PromptMemo())
        np.testing.assert_array_equal(trajectory.rows[0].token_ids, whole.rows[0].token_ids)
        assert trajectory == whole
        assert first.heard + second.heard == environment.heard, "no turn is answered twice or left out"
