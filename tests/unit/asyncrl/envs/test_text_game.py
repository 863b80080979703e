"""The text game: its answers lead to the number, its rows are checked, and the starter's demonstrations are its own."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import RolloutConfig
from asyncrl.config.trainer import StarterTaskConfig
from asyncrl.data.rows import PromptRow, row_from_record
from asyncrl.data.values import Json
from asyncrl.envs import EnvironmentDeps
from asyncrl.envs.rewards import RewardPool
from asyncrl.envs.text_game import Game, TextGame, game_of
from asyncrl.starter.task import TASKS, rows, training


def row(truth: Json = None, **extra: Json) -> PromptRow:
    return PromptRow(3, "text_game", ({"role": "user", "content": "guess"},), truth, extra)


def halved(game: Game) -> int:
    """Guesses that halving needs, going by the game's answers alone."""
    low, high, guesses = game.low, game.high, 1
    while (said := game.answer(str((low + high) // 2))) is not None:
        guess = (low + high) // 2
        low, high = (guess + 1, high) if said == "higher" else (low, guess - 1)
        guesses += 1
    return guesses


@given(st.data())
def test_who_halves_what_is_left_finds_every_number(data: st.DataObject) -> None:
    low = data.draw(st.integers(-(10**6), 10**6))
    high = data.draw(st.integers(low + 1, low + 10**6))
    game = Game(low, high, data.draw(st.integers(low, high)))
    assert halved(game) <= (high - low + 1).bit_length()


def test_four_guesses_are_enough_for_a_digit() -> None:
    assert max(halved(Game(0, 9, secret)) for secret in range(10)) == 4


@pytest.mark.parametrize("text", ["", "seven", "7.0", "7 8", "-1", "10", "٧", "9" * 30])
def test_what_is_no_guess_is_told_the_range_and_nothing_about_the_number(text: str) -> None:
    assert {Game(0, 9, secret).answer(text) for secret in range(10)} == {"a number from 0 to 9"}


@pytest.mark.parametrize("text", ["7", " 7\n", "07"])
def test_a_number_may_be_written_with_space_and_zeros(text: str) -> None:
    assert Game(0, 9, 7).answer(text) is None


def test_a_row_may_say_range_and_number_as_numbers_or_text() -> None:
    assert game_of(row("12", low=10, high="20"), seed=0) == Game(10, 20, 12)


def test_a_row_without_a_number_has_the_same_one_for_the_same_seed() -> None:
    secrets = [game_of(row(), seed).secret for seed in range(200)]
    assert secrets == [game_of(row(), seed).secret for seed in range(200)]
    assert set(secrets) == set(range(10))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row("seven"), "row 3: the ground truth is a string, wanted a whole number"),
        (row(["7"]), "row 3: the ground truth is a list"),
        (row(True), "row 3: the ground truth is a boolean"),
        (row(12), r"row 3: the ground truth 12 is not in 0\.\.9"),
        (row(7, low=9), r"row 3: extra_info\.low = 9 must be below extra_info\.high = 9"),
        (row(7, high=None), r"row 3: extra_info\.high is null"),
    ],
)
def test_a_row_that_holds_no_game_is_refused_by_field(bad: PromptRow, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        game_of(bad, seed=0)


def test_the_reward_says_how_many_guesses_it_took() -> None:
    async def check() -> None:
        game = TextGame(EnvironmentDeps(RewardPool(1, 5.0), RolloutConfig(max_turns=2)))
        await game.reset(row("7"), seed=0)
        assert (await game.step("3", "stop")).messages == ({"role": "user", "content": "higher"},)
        ended = await game.step("8", "stop")
        assert ended.reward is not None
        assert (ended.reward.value, ended.reward.parts) == (0.0, {"guesses": 2.0})

    asyncio.run(check())


def test_demonstrations_show_true_answers_and_a_guess_that_they_leave_open() -> None:
    rng = random.Random(0)
    lengths = set()
    for _ in range(300):
        problem = TASKS["text_game"].draw(rng, 4)
        low, high, secret = problem.extra["low"], problem.extra["high"], int(problem.truth or "")
        assert [told for _, told in problem.history] == [Game(low, high, secret).answer(x) for x, _ in problem.history]
        left = [
            number
            for number in range(low, high + 1)
            if all(Game(low, high, number).answer(said) == told for said, told in problem.history)
        ]
        assert left[0] <= int(problem.answer) <= left[-1]
        assert secret in left
        assert problem.answer in problem.decoys
        lengths.add(len(problem.history))
    assert lengths == {0, 1, 2}


def test_the_rows_of_the_starter_are_games() -> None:
    config = StarterTaskConfig(name="text_game", train_rows=20, val_rows=5, min_digits=4, max_digits=4)
    for values in rows(config, training(config, 0), "train"):
        found, notes = row_from_record(values, index=0, prompt_key="prompt")  # type: ignore[arg-type]
        assert notes == []
        game = game_of(found, seed=0)
        assert f"guess {game.low} to {game.high}" in str(found.messages[0]["content"])
