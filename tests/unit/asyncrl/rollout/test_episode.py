"""Episodes against a generator and an environment that follow a script."""

import asyncio
from dataclasses import replace

import pytest

from asyncrl.envs.base import StepResult
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.rollout.episode import EpisodeFailed, PromptMemo
from asyncrl.rollout.progress import Progress
from tests.support.char_chat import END
from tests.support.event_loop import in_event_loop
from tests.support.scripted_play import Play


@in_event_loop
async def test_a_single_turn_is_rendered_once_sampled_and_scored() -> None:
    play = Play(([15, 16, END], "stop"))
    trajectory = await play.run()
    assert trajectory.rows[0].token_ids.tolist() == [1, 11, 12, 13, 14, END, 1, 15, 16, END]
    assert trajectory.rows[0].mask.tolist() == [False] * 7 + [True] * 3
    assert (trajectory.reward, dict(trajectory.reward_parts)) == (0.5, {"part": 1.0})
    assert (trajectory.finish_reason, trajectory.num_turns) == ("stop", 1)
    assert play.environment.heard == [("56", "stop")]
    assert dict(trajectory.extra_info) == {}
    assert play.fleet.asked[0][1].stop_token_ids == (END,)


@in_event_loop
async def test_steps_of_the_environment_are_timed_on_training_prompts() -> None:
    play = Play(([15, END], "stop"), ([16, END], "stop"), replies=("9",))
    await play.run()
    assert sum(play.player.environment_s.calls.values()) == 2
    held_out = Play(([15, END], "stop"))
    held_out.task = replace(held_out.task, stream="eval")
    await held_out.run()
    assert held_out.player.environment_s.calls == {}


@in_event_loop
async def test_later_turns_append_and_never_render_what_was_said_before() -> None:
    play = Play(([15, END], "stop"), ([16, END], "stop"), replies=("9",))
    trajectory = await play.run()
    first, second = play.fleet.asked
    assert second[0][: len(first[0]) + 2] == [*first[0], 15, END], "turn 2 extends turn 1 and what was sampled"
    assert trajectory.rows[0].token_ids.tolist() == [*first[0], 15, END, 1, 19, END, 1, 16, END]
    assert int(trajectory.rows[0].mask.sum()) == 4
    assert trajectory.num_turns == 2
    assert len(play.fleet.sessions) == 1, "one episode is one session"


@in_event_loop
async def test_an_answer_that_was_cut_is_continued_from_its_tokens_under_the_same_seed() -> None:
    """B204: an abort is no end of the turn."""
    play = Play(([15, 16], "abort"), ([], "abort"), ([17, END], "stop"))
    trajectory = await play.run()
    assert trajectory.rows[0].token_ids.tolist()[-4:] == [15, 16, 17, END]
    assert trajectory.finish_reason == "stop"
    assert [len(ids) for ids, _ in play.fleet.asked] == [7, 9, 9]
    assert [sampling.max_new_tokens for _, sampling in play.fleet.asked] == [8, 6, 6]
    assert len({sampling.seed for _, sampling in play.fleet.asked}) == 1, "a server draws by seed and position"
    assert play.environment.heard == [("567", "stop")], "the environment hears whole turns"
    assert play.player.counts["answers_cut"] == 2


@in_event_loop
async def test_a_retry_draws_what_the_first_try_would_have_drawn() -> None:
    play = Play(ServerUnavailable("dropped"), ([15, END], "stop"))
    await play.run()
    (first, again) = play.fleet.asked
    assert first == again
    assert play.player.counts["answers_lost"] == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ServerUnavailable("down"), "server_failed"),
        (MalformedAnswer("mismatched_logprobs", "3 ids, 2 logprobs"), "server_failed"),
        (RequestRefused("too long"), "request_refused"),
    ],
)
@in_event_loop
async def test_an_outage_is_a_failure_and_never_an_empty_answer(error: Exception, reason: str) -> None:
    play = Play(error, error)
    with pytest.raises(EpisodeFailed) as caught:
        await play.run()
    assert caught.value.reason == reason
    assert play.environment.heard == []


@in_event_loop
async def test_a_full_queue_is_no_failure_but_has_an_end() -> None:
    busy = ServerBusy("queue is full")
    assert (await Play(*[busy] * 20, ([15, END], "stop")).run()).num_sampled == 2
    with pytest.raises(EpisodeFailed, match="in vain: queue is full"):
        await Play(*[busy] * 64).run()


@in_event_loop
async def test_a_malformed_answer_is_counted_by_its_reason_and_asked_again() -> None:
    play = Play(MalformedAnswer("mismatched_logprobs", "3 ids, 2 logprobs"), ([15, END], "stop"))
    await play.run()
    assert play.player.counts["answers_mismatched_logprobs"] == 1


@in_event_loop
async def test_attempts_are_counted_in_a_row_so_that_progress_forgives_them() -> None:
    down = ServerUnavailable("down")
    play = Play(down, ([15], "abort"), down, ([16], "abort"), down, ([END], "stop"))
    assert (await play.run()).num_sampled == 3


@in_event_loop
async def test_servers_that_abort_everything_end_the_episode() -> None:
    with pytest.raises(EpisodeFailed, match="aborted without a token"):
        await Play(*[([], "abort")] * 64).run()


@in_event_loop
async def test_the_request_is_cut_to_the_room_that_the_context_has_left() -> None:
    play = Play(([15, 16, 17], "length"), context_length=10)
    trajectory = await play.run()
    assert play.fleet.asked[0][1].max_new_tokens == 3
    assert trajectory.finish_reason == "length"


@in_event_loop
async def test_a_conversation_that_fills_the_context_ends_by_length_without_a_request() -> None:
    play = Play(([15, END], "stop"), replies=("99",), context_length=12)
    trajectory = await play.run()
    assert trajectory.finish_reason == "length"
    assert play.environment.heard == [("5", "stop"), ("", "length")]
    assert len(play.fleet.asked) == 1


@in_event_loop
async def test_a_cut_turn_is_closed_before_the_conversation_goes_on() -> None:
    play = Play(([15, 16], "length"), ([17, END], "stop"), replies=("9",))
    trajectory = await play.run()
    assert trajectory.rows[0].token_ids.tolist()[7:] == [15, 16, END, 1, 19, END, 1, 17, END]


@in_event_loop
async def test_an_environment_that_never_ends_is_ended_by_max_turns_without_a_reward() -> None:
    play = Play(*[([15, END], "stop")] * 3, replies=("9",) * 3)
    trajectory = await play.run()
    assert (trajectory.finish_reason, trajectory.num_turns, trajectory.reward) == ("env", 3, None)
    assert "max_turns" in str(trajectory.reward_error)


@in_event_loop
async def test_what_an_environment_raises_fails_the_group_not_the_worker() -> None:
    play = Play(([15, END], "stop"))

    async def broken(text: str, finish_reason: str) -> StepResult:
        raise KeyError("answer")

    play.environment.step = broken  # type: ignore[method-assign]  # somebody's buggy environment
    with pytest.raises(EpisodeFailed, match="KeyError") as caught:
        await play.run()
    assert caught.value.reason == "environment_failed"


@in_event_loop
async def test_a_prompt_longer_than_allowed_is_refused_or_cut_as_configured() -> None:
    """Where it is sampled, too, as an environment may write the prompt (B099)."""
    with pytest.raises(EpisodeFailed) as caught:
        await Play(max_prompt_tokens=4).run()
    assert caught.value.reason == "prompt_refused"
    play = Play(([15, END], "stop"), max_prompt_tokens=4, truncation="left")
    assert (await play.run()).rows[0].num_prompt_tokens == 4


@in_event_loop
async def test_the_episodes_of_a_group_render_their_common_prompt_once() -> None:
    play, memo = Play(([15, END], "stop"), ([16, END], "stop")), PromptMemo()
    await asyncio.gather(*(play.player.play(play.task, Progress(), memo) for _ in range(2)))
    assert play.chat.num_renders == 1


@in_event_loop
async def test_text_is_kept_only_where_people_look() -> None:
    play = Play(([15, END], "stop"), ([16, END], "stop"), replies=("9",))
    play.task = replace(play.task, with_text=True)
    assert dict((await play.run()).extra_info) == {"prompt_text": "user: 1234", "response_text": "5\n6", "pred": "6"}


@in_event_loop
async def test_a_long_turn_is_asked_for_in_pieces_of_chunk_tokens() -> None:
    play = Play(([15, 16, 17], "length"), ([18, 19, 15], "length"), ([16, 17], "length"), chunk_tokens=3)
    trajectory = await play.run()
    assert [sampling.max_new_tokens for _, sampling in play.fleet.asked] == [3, 3, 2]
    assert [len(ids) for ids, _ in play.fleet.asked] == [7, 10, 13]
    assert (trajectory.num_sampled, trajectory.finish_reason) == (8, "length")
    assert play.environment.heard == [("56789567", "length")]


@in_event_loop
async def test_a_piece_that_ends_early_ends_the_turn() -> None:
    play = Play(([15, 16], "length"), chunk_tokens=3)
    assert (await play.run()).finish_reason == "length", "the server has no more room than that"
    assert (await Play(([15, 16, END], "stop"), chunk_tokens=3).run()).finish_reason == "stop"
