"""Episodes against a generator and an environment that follow a script."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Message, Reward, StepResult
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.inference.fleet import Generated, Session
from asyncrl.inference.protocol import Sampling
from asyncrl.rollout.episode import EpisodeFailed, EpisodePlayer, EpisodeSettings, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Progress
from buffer import Span, Trajectory
from tests.support.char_chat import END, CharChat
from tests.support.event_loop import in_event_loop

SETTINGS = EpisodeSettings(
    run_seed=0,
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    max_new_tokens=8,
    max_turns=3,
    max_attempts=2,
    context_length=64,
    max_prompt_tokens=60,
    truncation="error",
)
ROW = PromptRow(0, "test", ({"role": "user", "content": "1234"},), None, {})


class ScriptedFleet:
    """Gives the answers of a script; an exception in it is raised."""

    def __init__(self, *script: Any) -> None:
        self.script = deque(script)
        self.asked: list[tuple[list[int], Sampling]] = []
        self.sessions: set[int] = set()

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, session: Session, may_start_on: Callable[[int], bool]
    ) -> Generated:
        self.asked.append((list(token_ids), sampling))
        self.sessions.add(id(session))
        step = self.script.popleft()
        if isinstance(step, Exception):
            raise step
        ids, finish = step
        spans = (Span(7, 70, len(ids)),) if ids else ()
        return Generated(tuple(ids), (-0.5,) * len(ids), finish, spans, "server-0")

    async def cut(self, session: Session) -> None:
        raise AssertionError("nothing is in flight")


class ScriptedEnvironment:
    """Says the messages of a script, then ends with a reward."""

    def __init__(self, *replies: str) -> None:
        self.replies = deque(replies)
        self.heard: list[tuple[str, str]] = []
        self.seed: int | None = None

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        self.seed = seed
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        self.heard.append((text, finish_reason))
        if self.replies:
            return StepResult(messages=({"role": "user", "content": self.replies.popleft()},))
        return StepResult(done=True, reward=Reward(0.5, None, {"part": 1.0}))


class Play:
    """One episode with its parts at hand."""

    def __init__(self, *script: Any, replies: tuple[str, ...] = (), **settings: Any) -> None:
        self.chat, self.fleet, self.environment = CharChat(), ScriptedFleet(*script), ScriptedEnvironment(*replies)
        self.player = EpisodePlayer(self.chat, self.fleet, lambda: self.environment, replace(SETTINGS, **settings))
        self.task = EpisodeTask(ROW, "train", ordinal=3, episode=1, may_start_on=lambda version: True)

    async def run(self) -> Trajectory:
        return await self.player.play(self.task, Progress(), PromptMemo())


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
    assert dict((await play.run()).extra_info) == {"prompt_text": "user: 1234", "response_text": "5\n6"}
