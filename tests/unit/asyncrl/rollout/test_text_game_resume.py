"""The text game, parked in the middle by one worker and won by the next: the guesses behind it count."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from asyncrl.config import RolloutConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs import EnvironmentDeps
from asyncrl.envs.rewards import RewardPool
from asyncrl.envs.text_game import TextGame
from asyncrl.rollout.episode import EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Halted, Progress
from tests.support.char_chat import END, CharChat
from tests.support.event_loop import in_event_loop
from tests.support.scripted_play import SETTINGS, ScriptedFleet, taken_over, travelled

ROW = PromptRow(0, "text_game", ({"role": "user", "content": "guess"},), "7", {})
THREE, SEVEN = 13, 17


class TextChat(CharChat):
    """Letters are their code points, beyond all digits."""

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return [1, *(100 + ord(char) for char in messages[-1]["content"]), END, 1]


def player_of(fleet: ScriptedFleet, max_turns: int) -> EpisodePlayer:
    deps = EnvironmentDeps(RewardPool(1, 5.0), RolloutConfig(max_turns=max_turns))
    return EpisodePlayer(TextChat(), fleet, lambda: TextGame(deps), SETTINGS)


TASK = EpisodeTask(ROW, "train", ordinal=3, episode=1, may_start_on=lambda version: True)


@pytest.mark.parametrize(("max_turns", "second", "reward"), [(3, [SEVEN, END], 1.0), (2, [THREE, END], 0.0)])
@in_event_loop
async def test_a_parked_game_goes_on_with_the_guesses_that_were_made(
    max_turns: int, second: list[int], reward: float
) -> None:
    first = ScriptedFleet(([THREE, END], "stop"), ([], "abort"), version=4)
    first.halts = Progress()
    with pytest.raises(Halted):
        await player_of(first, max_turns).play(TASK, first.halts, PromptMemo())
    parked = travelled(first.halts)
    assert parked.state == {"turn": 1}

    fleet = ScriptedFleet((second, "stop"), version=5)
    trajectory = await player_of(fleet, max_turns).play(TASK, taken_over(parked), PromptMemo())
    told = [100 + ord(char) for char in "higher"]
    assert trajectory.rows[0].token_ids.tolist()[-len(told) - 7 :] == [THREE, END, 1, *told, END, 1, *second]
    assert (trajectory.reward, dict(trajectory.reward_parts)) == (reward, {"guesses": 2.0})
    assert [span.version for span in trajectory.rows[0].spans] == [4, 5]
    assert trajectory.num_turns == 2
    assert len(fleet.asked) == 1, "no turn is played twice"
