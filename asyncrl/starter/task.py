"""The verifiable tasks that the starter can write: one row of TASKS each, and prompts drawn from them by seed."""

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from asyncrl.config.trainer import StarterTaskConfig
from asyncrl.envs.text_game import Game
from asyncrl.errors import ConfigError
from asyncrl.starter import remainders
from asyncrl.starter.problem import Problem, Task

DIGITS = "0123456789"
LOW, HIGH, MAX_GUESSES = 0, 4, 3
"""Range of the text game, and the guesses of it that demonstrations show at most, the one to be made included."""


def _sort_digits(rng: random.Random, digits: int) -> Problem:
    number = "".join(rng.choices(DIGITS, k=digits))
    ascending = "".join(sorted(number))
    return Problem(f"sort {number}", ascending, (number, number[::-1], ascending[::-1], ascending))


def _arithmetic(rng: random.Random, digits: int) -> Problem:
    low, high = _operands(digits)
    one, other = rng.randint(low, high), rng.randint(low, high)
    total = str(one + other)
    return Problem(f"{one}+{other}=", total, (str(one), str(other), str(abs(one - other)), total))


def _operands(digits: int) -> tuple[int, int]:
    return (0 if digits == 1 else 10 ** (digits - 1)), 10**digits - 1


def _num_sums(digits: int) -> int:
    low, high = _operands(digits)
    return (high - low + 1) ** 2


def _text_game(rng: random.Random, digits: int) -> Problem:
    """A number to find in LOW..HIGH, in the middle of the game: some guesses were made, each told higher or lower.

    Half of the games were played so far as the answer plays on, by the middle of what is left; the others at random.
    """
    number = "".join(rng.choices(DIGITS, k=digits))
    game = Game(LOW, HIGH, rng.randint(LOW, HIGH))
    low, high, history, halves = game.low, game.high, [], rng.random() < 0.5
    for _ in range(rng.randrange(MAX_GUESSES)):
        guess = (low + high) // 2 if halves else rng.randint(game.low, game.high)
        if guess == game.secret:
            break
        low, high = (max(low, guess + 1), high) if guess < game.secret else (low, min(high, guess - 1))
        history.append((str(guess), str(game.answer(str(guess)))))
    prompt = f"game {number}: guess {game.low} to {game.high}"
    return Problem(
        prompt,
        str((low + high) // 2),
        tuple(DIGITS[game.low : game.high + 1]),
        tuple(history),
        truth=str(game.secret),
        extra={"low": game.low, "high": game.high},
    )


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "sort_digits": Task(_sort_digits, lambda digits: 10**digits, "sorting"),
        "arithmetic": Task(_arithmetic, _num_sums, "math"),
        "text_game": Task(_text_game, lambda digits: 10**digits, "games"),
        "remainders": Task(remainders.draw, remainders.num_prompts, "math", data_source="arithmetic", calls_tools=True),
    }
)


def check(config: StarterTaskConfig) -> None:
    """Refuse a task that does not exist, or that has too few different prompts for two disjoint files.

    Raises:
        ConfigError: naming the key, what was found and what is allowed.
    """
    if config.name not in TASKS:
        raise ConfigError(f"starter.task.name = {config.name!r} is not a task; choose one of {', '.join(TASKS)}.")
    if config.min_digits > config.max_digits:
        raise ConfigError(
            f"starter.task.min_digits = {config.min_digits} is more than starter.task.max_digits = "
            f"{config.max_digits}: no prompt has such a length. Swap them."
        )
    task = TASKS[config.name]
    available = sum(task.num_prompts(digits) for digits in range(config.min_digits, config.max_digits + 1))
    wanted = config.train_rows + config.val_rows
    if available < wanted:
        raise ConfigError(
            f"starter.task has {available} different prompts of {config.min_digits} to {config.max_digits} digits, "
            f"but train_rows = {config.train_rows} and val_rows = {config.val_rows} need {wanted}: held-out prompts "
            "would be trained on. Raise starter.task.max_digits or lower the number of rows."
        )


def problems(config: StarterTaskConfig, seed: int, part: str, exclude: frozenset[str]) -> Iterator[Problem]:
    """An endless stream of problems, their sizes drawn evenly; prompts in `exclude` never come.

    Args:
        seed: with `part` it determines the stream.
        part: "train", "val" or another use of the stream.
        exclude: prompts to leave out. The caller has made sure that others exist (`check`).
    """
    rng = random.Random(f"{seed}:{config.name}:{part}")
    task = TASKS[config.name]
    while True:
        problem = task.draw(rng, rng.randint(config.min_digits, config.max_digits))
        if problem.prompt not in exclude:
            yield problem


def held_out(config: StarterTaskConfig, seed: int) -> list[Problem]:
    """The problems of the held-out file, all different."""
    return _distinct(problems(config, seed, "val", frozenset()), config.val_rows)


def training(config: StarterTaskConfig, seed: int) -> list[Problem]:
    """The problems of the training file, all different, none of them held out."""
    exclude = frozenset(problem.prompt for problem in held_out(config, seed))
    return _distinct(problems(config, seed, "train", exclude), config.train_rows)


def rows(config: StarterTaskConfig, chosen: list[Problem], split: str) -> list[dict[str, object]]:
    """The problems as rows of verl's schema: data_source, prompt, ability, reward_model, extra_info."""
    return [
        {
            "data_source": TASKS[config.name].data_source or config.name,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": TASKS[config.name].ability,
            "reward_model": {
                "style": "rule",
                "ground_truth": problem.answer if problem.truth is None else problem.truth,
            },
            "extra_info": {"split": split, "index": index, **problem.extra},
        }
        for index, problem in enumerate(chosen)
    ]


def _distinct(stream: Iterator[Problem], count: int) -> list[Problem]:
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = next(stream)
        found.setdefault(problem.prompt, problem)
    return list(found.values())
