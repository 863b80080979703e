"""How tokens are drawn: held-out prompts by settings of their own, the greedy baseline and temperature 0 greedily."""

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.load_config import load
from asyncrl.rollout.seeds import Stream
from asyncrl.rollout.turns import GREEDY, Drawing, EpisodeTask
from asyncrl.run.rollout_parts import held_out_drawing
from tests.support.episode_settings import episode_settings

ROW = PromptRow(0, "toy", ({"role": "user", "content": "q"},), None, {})


def task(stream: Stream, *, is_greedy: bool = False) -> EpisodeTask:
    return EpisodeTask(ROW, stream, 0, 0, may_start_on=lambda version: True, is_greedy=is_greedy)


def test_held_out_prompts_are_drawn_by_their_own_settings_and_training_by_its_own() -> None:
    settings = episode_settings(temperature=0.7, top_p=0.9, top_k=20, held_out=Drawing(0.2, 0.5, 3))
    assert settings.drawing(task("train")) == Drawing(0.7, 0.9, 20)
    assert settings.drawing(task("eval")) == Drawing(0.2, 0.5, 3)
    assert episode_settings(temperature=0.7).drawing(task("eval")) == Drawing(0.7, 1.0, -1)


def test_temperature_0_and_the_baseline_take_the_likeliest_token_whatever_else_is_set() -> None:
    settings = episode_settings(temperature=0.7, top_p=0.9, top_k=20, held_out=Drawing(0.0, 0.5, 3))
    assert settings.drawing(task("eval")) == GREEDY == Drawing(0.0, 1.0, -1)
    assert settings.drawing(task("train", is_greedy=True)) == GREEDY


@pytest.mark.parametrize(
    ("overrides", "drawing"),
    [
        ([], Drawing(0.7, 0.9, 20)),
        (["eval.temperature=0.1"], Drawing(0.1, 0.9, 20)),
        (["eval.top_p=1.0", "eval.top_k=-1"], Drawing(0.7, 1.0, -1)),
        (["eval.temperature=0"], Drawing(0.0, 0.9, 20)),
    ],
)
def test_what_is_not_set_is_rollouts(overrides: list[str], drawing: Drawing) -> None:
    rollout = ["rollout.temperature=0.7", "rollout.top_p=0.9", "rollout.top_k=20"]
    assert held_out_drawing(load(None, [*rollout, *overrides]).config) == drawing
