"""Episodes with tools: what each turn appends, which states they pass, and that tools are released whatever happens."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.parsers import ParsedTurn, ToolCall
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.rollout.episode import EpisodeFailed
from asyncrl.rollout.progress import Halted, Progress
from tests.support.char_chat import END
from tests.support.event_loop import in_event_loop
from tests.support.scripted_play import taken_over, travelled
from tests.support.scripted_tools import ScriptedTool, never
from tests.support.seeded_fleet import SeededFleet
from tests.support.tool_play import ANSWER, CALL, ROW, FixedRewards, ToolPlay


@in_event_loop
async def test_a_call_its_result_and_the_answer_are_one_row_in_which_only_the_model_is_trained() -> None:
    """B132: three sampled ids, the tool's, two sampled ids."""
    play = ToolPlay(CALL, ANSWER)
    trajectory = await play.run()
    (row,) = trajectory.rows
    assert row.token_ids.tolist() == [1, 11, 12, 13, 14, END, 1, 15, 16, END, 1, 15, 16, END, 1, 17, END]
    assert row.mask.tolist() == [False] * 7 + [True] * 3 + [False] * 5 + [True] * 2
    assert (trajectory.num_sampled, trajectory.num_turns, trajectory.reward) == (5, 2, 1.0)
    assert play.tool.arguments == [{"x": 56}]
    play.tool.check_released()
    assert play.player.counts["tool_calls_ok"] == 1, "the worker reports them"


@in_event_loop
async def test_an_episode_passes_through_its_states_and_leaves_none_behind() -> None:
    seen: list[str] = []

    def note() -> None:
        seen.extend(
            name for name, count in play.player.states.facts().items() if count and name != "episodes_terminated"
        )

    async def look(arguments: Mapping[str, Json]) -> ToolAnswer:
        note()
        return ToolAnswer("9")

    async def make() -> None:
        note()

    play = ToolPlay(CALL, ANSWER, tool=ScriptedTool(execute=look, create=make))
    generate, score = play.fleet.generate, play.rewards.score

    async def generating(*args: Any, **kwargs: Any) -> Any:
        note()
        return await generate(*args, **kwargs)

    async def scoring(*args: Any) -> Any:
        note()
        return await score(*args)

    play.fleet.generate, play.rewards.score = generating, scoring  # type: ignore[method-assign]
    await play.run()
    assert seen == [
        "episodes_generating",
        "episodes_processing_tools",  # create
        "episodes_processing_tools",
        "episodes_generating",
        "episodes_interacting",
    ]
    assert {name for name, count in play.player.states.facts().items() if count} == {"episodes_terminated"}


@in_event_loop
async def test_a_model_that_only_calls_is_ended_by_max_turns_and_scored() -> None:
    """B143: the same call again and again, 5 turns at most."""
    play = ToolPlay(*[CALL] * 5, max_turns=5)
    trajectory = await play.run()
    assert (trajectory.num_turns, len(play.tool.arguments), trajectory.reward) == (5, 4, 1.0)


@in_event_loop
async def test_a_result_that_leaves_no_room_for_an_answer_is_not_appended() -> None:
    """B146: whatever a result is made of, the context is never exceeded."""

    async def long(arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer("9" * 100)

    play = ToolPlay(CALL, ANSWER, tool=ScriptedTool(execute=long))
    trajectory = await play.run()
    assert trajectory.finish_reason == "length"
    assert len(trajectory.rows[0].token_ids) == 10
    assert len(play.fleet.asked) == 1


@in_event_loop
async def test_a_later_turn_is_asked_only_for_what_the_context_has_left_and_is_known_as_cut() -> None:
    """B136: 4 tokens are asked for, not 8. B137: an answer that the context cut is no complete one."""
    play = ToolPlay(CALL, ([17, 18, 19, 17], "length"), context_length=19)
    trajectory = await play.run()
    assert [sampling.max_new_tokens for _, sampling in play.fleet.asked] == [8, 4]
    assert (len(trajectory.rows[0].token_ids), trajectory.finish_reason) == (19, "length")


def test_one_player_plays_in_one_event_loop_after_another() -> None:
    """B138: nothing of an episode is bound to the loop of the one before."""
    play = ToolPlay(CALL, ANSWER, CALL, ANSWER)
    for _ in range(2):
        assert asyncio.run(play.run()).num_turns == 2
    play.tool.check_released()
    assert len(play.tool.created) == 2


@pytest.mark.parametrize("script", [(CALL, ServerUnavailable("down"), ServerUnavailable("down")), (CALL,)])
@in_event_loop
async def test_tools_are_released_when_the_episode_fails(script: tuple[Any, ...]) -> None:
    """B134: an outage between turns is a failure, and nothing is scored."""
    play = ToolPlay(*script)
    with pytest.raises((EpisodeFailed, IndexError)):
        await play.run()
    assert play.rewards.rows == []
    play.tool.check_released()
    assert play.tool.created


@in_event_loop
async def test_tools_are_released_when_the_episode_is_parked() -> None:
    play = ToolPlay(CALL, ([17], "abort"))
    progress = play.fleet.halts = Progress()
    with pytest.raises(Halted):
        await play.run(progress)
    play.tool.check_released()
    assert play.tool.created
    await play.deps.resources.close()


@pytest.mark.parametrize("where", ["create", "execute", "release"])
@in_event_loop
async def test_tools_are_released_when_the_worker_is_cancelled(where: str) -> None:
    reached = asyncio.Event()

    async def hang(*_: object) -> Any:
        reached.set()
        await never()

    play = ToolPlay(CALL, ANSWER, tool=ScriptedTool(**{where: hang}), timeout_s=0.05 if where == "release" else 5.0)
    task = asyncio.create_task(play.run())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await play.deps.resources.close()
    play.tool.check_released()
    assert play.tool.created


@in_event_loop
async def test_an_episode_whose_tools_keep_nothing_goes_on_elsewhere_with_what_its_calls_were_worth() -> None:
    async def worth(arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer("9", reward=0.5)

    def tool() -> ScriptedTool:
        return ScriptedTool(execute=worth, keeps_state=False)

    first = ToolPlay(CALL, ([17], "abort"), tool=tool())
    progress = first.fleet.halts = Progress()
    with pytest.raises(Halted):
        await first.run(progress)
    second = ToolPlay(([END], "stop"), tool=tool())
    trajectory = await second.run(taken_over(travelled(progress)))
    assert trajectory.num_turns == 2
    assert dict(trajectory.reward_parts) == {"tool/calc": 0.5}
    assert second.tool.arguments == [], "the call was answered by the last owner"
    assert second.player.counts["partials_restarted"] == 0


@in_event_loop
async def test_an_episode_whose_tools_keep_state_starts_over_elsewhere() -> None:
    first = ToolPlay(CALL, ([17], "abort"))
    progress = first.fleet.halts = Progress()
    with pytest.raises(Halted):
        await first.run(progress)
    second = ToolPlay(ANSWER)
    trajectory = await second.run(taken_over(travelled(progress)))
    assert (trajectory.num_turns, second.player.counts["partials_restarted"]) == (1, 1)
    second.tool.check_released()


REWARDED = [
    (0.0, 1.0, {"tool/calc": 0.75}, 1.0),
    (2.0, 1.0, {"tool/calc": 0.75}, 2.5),
    (2.0, None, {"tool/calc": 0.75}, None),
]


@pytest.mark.parametrize(("weight", "score", "parts", "reward"), REWARDED)
@in_event_loop
async def test_what_tools_say_is_shown_beside_the_score_and_added_by_its_weight(
    weight: float, score: float | None, parts: dict[str, float], reward: float | None
) -> None:
    async def worth(arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer("9", reward=0.5, metrics={"rows": 3.0})

    async def of_episode() -> float:
        return 0.25

    tool = ScriptedTool(execute=worth, reward=of_episode)
    play = ToolPlay(CALL, ANSWER, tool=tool, rewards=FixedRewards(score), reward_weight=weight)
    trajectory = await play.run()
    assert trajectory.reward == reward
    assert dict(trajectory.reward_parts) == {**parts, "tool/calc/rows": 3.0}
    (row,) = play.rewards.rows
    assert row.extra_info == {
        "num_turns": 2,
        "tool_rewards": {"calc": [0.5]},
        "rollout_reward_scores": {"calc": 0.25},
        "turn_scores": [],
    }


@in_event_loop
async def test_a_tool_that_gives_no_reward_masks_the_episode_if_its_reward_counts() -> None:
    async def broken() -> float:
        raise OSError

    for weight, reward in ((0.0, 1.0), (1.0, None)):
        play = ToolPlay(CALL, ANSWER, tool=ScriptedTool(reward=broken), reward_weight=weight)
        trajectory = await play.run()
        assert trajectory.reward == reward
        assert trajectory.reward_error == (None if reward else "tools gave no reward: calc")


@in_event_loop
async def test_a_row_that_shows_a_tool_that_there_is_not_fails_and_names_both() -> None:
    play = ToolPlay(ANSWER)
    play.task = replace(play.task, row=replace(ROW, tools=({"type": "function", "function": {"name": "shell"}},)))
    with pytest.raises(EpisodeFailed, match="row 0 shows the tools shell"):
        await play.run()
    play.task = replace(play.task, row=replace(ROW, extra_info={"tools_kwargs": 3}))
    with pytest.raises(EpisodeFailed, match="tools_kwargs is a number"):
        await play.run()


@in_event_loop
async def test_a_prompt_that_is_too_long_with_the_environments_tools_says_that_they_count() -> None:
    play = ToolPlay(ANSWER)
    play.task = replace(play.task, row=replace(ROW, messages=({"role": "user", "content": "1" * 20},)))
    with pytest.raises(EpisodeFailed, match="Its tools are the environment's") as caught:
        await play.run()
    assert caught.value.reason == "prompt_refused"


@pytest.mark.parametrize("ordinal", range(3))
@in_event_loop
async def test_wherever_it_is_cut_an_episode_with_tools_goes_on_as_the_uncut_one(ordinal: int) -> None:
    """Calls that were answered are not repeated; one whose turn was not answered yet is made by the next owner."""

    async def double(arguments: Mapping[str, Json]) -> ToolAnswer:
        return ToolAnswer(str(2 * int(str(arguments["x"]))), reward=1.0)

    def play_on(progress: Progress, cut: int | None = None) -> ToolPlay:
        tool = ScriptedTool(execute=double, keeps_state=False)
        play = ToolPlay(
            tool=tool,
            fleet=SeededFleet(progress, cut),
            read_turn=lambda text: ParsedTurn("", (ToolCall("calc", {"x": len(text)}),)),
        )
        play.task = replace(play.task, ordinal=ordinal)
        return play

    progress = Progress()
    uncut = play_on(progress)
    whole = await uncut.run(progress)
    assert whole.num_turns == 3 or whole.finish_reason == "length"
    for cut in range(1, whole.num_sampled):
        progress = Progress()
        first = play_on(progress, cut)
        with pytest.raises(Halted):
            await first.run(progress)
        resumed = taken_over(travelled(progress))
        second = play_on(resumed)
        assert await second.run(resumed) == whole
        assert first.tool.arguments + second.tool.arguments == uncut.tool.arguments
        first.tool.check_released()
        second.tool.check_released()
