"""The optimal token baseline against its definition, position by position in plain Python."""

import math
import random

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.token_baseline import optimal_token_baseline, optimal_token_baseline_multi_turn

NAN = float("nan")
Rows = list[list[float]]


def plain(rewards: list[float], ids: list[int], logprobs: Rows, squares: Rows) -> Rows:
    """Advantages of rows of tokens without holes, the outcome reward on the last one."""
    moved = [
        [sum(1 - 2 * math.exp(p) + s for p, s in zip(ps[: t + 1], ss[: t + 1], strict=True)) for t in range(len(ps))]
        for ps, ss in zip(logprobs, squares, strict=True)
    ]
    result = []
    for row, group in enumerate(ids):
        members = [other for other, its in enumerate(ids) if its == group and logprobs[other]]
        lengths = sorted((len(logprobs[other]) for other in members), reverse=True)
        advantages = []
        for t in range(len(logprobs[row])):
            going = [other for other in members if t < len(logprobs[other])]
            baseline = sum(rewards[o] * moved[o][t] for o in going) / (sum(moved[o][t] for o in going) + 1e-8)
            if len(members) == 1 or (len(going) == 1 and t >= lengths[1]):
                baseline = 0.0
            advantages.append(rewards[row] - baseline)
        result.append(advantages)
    return result


def random_rows(number: int) -> tuple[list[float], list[int], Rows, Rows]:
    rng = random.Random(number)
    num = rng.randint(1, 9)
    lengths = [rng.randint(0, 6) for _ in range(num)]
    logprobs = [[-3 * rng.random() for _ in range(length)] for length in lengths]
    # At least p^2, as a sum of squares that p^2 is one of.
    squares = [[math.exp(2 * p) + 0.1 * rng.random() for p in row] for row in logprobs]
    return [rng.gauss(0, 2) for _ in range(num)], [rng.randint(0, 2) for _ in range(num)], logprobs, squares


def scattered(rows: Rows, places: list[list[int]], width: int, fill: float) -> Tensor:
    grid = torch.full((len(rows), width), fill, dtype=torch.float64)
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        grid[number, place] = torch.tensor(row, dtype=torch.float64)
    return grid


@pytest.mark.parametrize("number", range(20))
def test_it_is_its_definition_with_rows_of_any_length_and_groups_of_any_size(number: int) -> None:
    rewards, ids, logprobs, squares = random_rows(number)
    width = 7
    places = [list(range(len(row))) for row in logprobs]
    mask = scattered([[1.0] * len(row) for row in logprobs], places, width, 0.0) > 0
    expected = scattered(plain(rewards, ids, logprobs, squares), places, width, 0.0).float()
    columns = {
        "logprobs_BT": scattered(logprobs, places, width, NAN),
        "sum_pi_squared_BT": scattered(squares, places, width, NAN),
    }
    arguments = (torch.tensor(rewards, dtype=torch.float64), mask, torch.tensor(ids))
    for estimate in (optimal_token_baseline, optimal_token_baseline_multi_turn):
        torch.testing.assert_close(estimate(*arguments, **columns), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", range(20))
def test_over_several_turns_a_position_is_counted_among_the_sampled_tokens(number: int) -> None:
    rewards, ids, logprobs, squares = random_rows(number)
    rng = random.Random(number)
    width = 11
    places = [sorted(rng.sample(range(width), len(row))) for row in logprobs]
    mask = scattered([[1.0] * len(row) for row in logprobs], places, width, 0.0) > 0
    got = optimal_token_baseline_multi_turn(
        torch.tensor(rewards, dtype=torch.float64),
        mask,
        torch.tensor(ids),
        logprobs_BT=scattered(logprobs, places, width, NAN),
        sum_pi_squared_BT=scattered(squares, places, width, NAN),
    )
    expected = scattered(plain(rewards, ids, logprobs, squares), places, width, 0.0).float()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def two_rows(**settings: object) -> Tensor:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    half = torch.full((2, 3), 0.5)
    return optimal_token_baseline(
        torch.tensor([2.0, 0.0]), mask, torch.tensor([0, 0]), logprobs_BT=half.log(), sum_pi_squared_BT=half, **settings
    )  # type: ignore[arg-type]  # each test's own settings


def test_the_tail_of_the_only_longest_row_is_trained_unless_that_is_switched_off() -> None:
    # Two even tokens: e = 1 - 1 + 0.5 at each position of both rows, so the baseline at the first one is the mean.
    torch.testing.assert_close(two_rows(), torch.tensor([[1.0, 2.0, 2.0], [-1.0, 0.0, 0.0]]))
    torch.testing.assert_close(two_rows(handle_zero_tail=False)[0], torch.tensor([1.0, 0.0, 0.0]))


def test_a_weight_counts_squared_and_one_of_zero_takes_its_row_out_of_the_baseline() -> None:
    weights = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    assert two_rows(weights_BT=weights)[0, 0].item() == pytest.approx(2.0 - 2.0 / 5.0)
    weights[0] = 0.0
    assert two_rows(weights_BT=weights)[1, 0].item() == pytest.approx(0.0)


def test_a_row_alone_gets_its_return_or_zero_as_asked_and_one_that_failed_leaves_another_alone() -> None:
    mask, half = torch.ones(2, 2, dtype=torch.bool), torch.full((2, 2), 0.5)
    for singleton, expected in (("raw", [3.0, 3.0]), ("zero", [0.0, 0.0])):
        got = optimal_token_baseline(
            torch.tensor([3.0, NAN]),
            mask,
            torch.tensor([0, 0]),
            logprobs_BT=half.log(),
            sum_pi_squared_BT=half,
            singleton=singleton,  # type: ignore[arg-type]  # the two that there are
        )
        assert got.tolist() == [expected, [0.0, 0.0]]
