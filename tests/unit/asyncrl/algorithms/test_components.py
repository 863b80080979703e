"""Several rewards at once: compared one by one, weighed, and known to be missing."""

import statistics

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.components import decoupled_components

NAN = float("nan")


def advantages(components: list[list[float]], ids: list[int], **settings: object) -> Tensor:
    parts = torch.tensor(components)
    rewards = parts.nan_to_num().sum(dim=0)
    mask = torch.ones(len(ids), 1, dtype=torch.bool)
    return decoupled_components(rewards, mask, torch.tensor(ids), components_KB=parts, **settings)[:, 0]  # type: ignore[arg-type]  # each test's own settings


def whitened(values: list[float]) -> Tensor:
    mean, scale = statistics.fmean(values), statistics.stdev(values)
    return torch.tensor([(value - mean) / scale for value in values])


def test_rows_of_one_sum_are_told_apart_by_their_components() -> None:
    """Summed first, a rare success and a common one would be worth the same."""
    components = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]]
    summed = group_relative(torch.tensor(components).sum(dim=0), torch.ones(4, 1) > 0, torch.zeros(4))
    assert (summed == 0).all()
    got = advantages(components, [0, 0, 0, 0], weights=[2.0, 1.0])
    assert got[0] > 0 > got[1]
    assert got[1] == got[2] == got[3]


def test_it_is_the_weighted_sum_of_group_relative_advantages_whitened_over_the_batch() -> None:
    ids = [0, 1, 0, 1, 0]
    components = [[1.0, 2.0, 0.0, 5.0, 3.0], [0.5, 0.0, 0.25, 1.0, 0.0]]
    for divide in (True, False):
        parts = [
            group_relative(torch.tensor(part), torch.ones(5, 1) > 0, torch.tensor(ids), divide_by_std=divide)[:, 0]
            for part in components
        ]
        expected = whitened((parts[0] + 0.5 * parts[1]).tolist())
        got = advantages(components, ids, weights=[1.0, 0.5], divide_by_std=divide)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_component_that_a_row_lacks_is_in_no_statistic_and_adds_nothing() -> None:
    """A part that failed is not 0 to its siblings, and a row that nobody scored is not trained (B075, B076)."""
    got = advantages([[1.0, 0.0, 0.0, NAN], [NAN, 2.0, 0.0, NAN]], [0, 0, 0, 0])
    first = [2 / 3, -1 / 3, -1 / 3]
    scale = statistics.stdev([1.0, 0.0, 0.0])
    second = [0.0, 1.0 / statistics.stdev([2.0, 0.0]), -1.0 / statistics.stdev([2.0, 0.0])]
    expected = whitened([a / scale + b for a, b in zip(first, second, strict=True)])
    torch.testing.assert_close(got[:3], expected, rtol=1e-4, atol=1e-5)
    assert got[3] == 0


def test_a_row_whose_whole_reward_failed_is_left_out_though_its_components_are_there() -> None:
    parts, mask = torch.tensor([[1.0, 0.0, 7.0]]), torch.ones(3, 1, dtype=torch.bool)
    got = decoupled_components(torch.tensor([1.0, 0.0, NAN]), mask, torch.zeros(3), components_KB=parts)
    assert got[2] == 0
    torch.testing.assert_close(got[:2, 0], torch.tensor([0.5**0.5, -(0.5**0.5)]))


def test_a_weight_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="1 weights for 2 reward components"):
        advantages([[1.0, 0.0], [0.0, 1.0]], [0, 0], weights=[1.0])


def test_rewards_without_parts_are_refused_as_they_would_train_nothing() -> None:
    for parts in (torch.zeros(0, 2), torch.full((1, 2), NAN)):
        with pytest.raises(ValueError, match="2 rows have a reward, but none has parts"):
            decoupled_components(torch.ones(2), torch.ones(2, 1) > 0, torch.zeros(2), components_KB=parts)
    nobody = torch.full((2,), NAN)
    got = decoupled_components(nobody, torch.ones(2, 1) > 0, torch.zeros(2), components_KB=torch.zeros(0, 2))
    assert (got == 0).all()
