"""Importance weights, rejection and mismatch: examples by hand, and sums over micro-batches."""

import math

import pytest
import torch

from asyncrl.algorithms.corrections import Weighting, correct, normalized
from asyncrl.algorithms.measures import add, finish, outermost
from asyncrl.algorithms.mismatch import mismatch, probability_difference
from asyncrl.algorithms.rejection import Rule, minimum_variance_kept
from asyncrl.algorithms.tables import ICEPOP, TIS, TIS_SEQUENCE

NAN = float("nan")


def policies(number: int, rows: int = 6, width: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(number)
    sampler = -3 * torch.rand(rows, width, generator=rng)
    trainer = sampler + 0.8 * torch.randn(rows, width, generator=rng)
    mask = torch.rand(rows, width, generator=rng) < 0.7
    mask[0] = False
    return trainer, sampler, mask


def of_ratios(ratios: list[float], **settings: object) -> list[float]:
    logs = torch.tensor([ratios]).log()
    mask = torch.ones(1, len(ratios), dtype=torch.bool)
    weighting = Weighting(**settings)  # type: ignore[arg-type]  # settings of the test's own table
    return correct(logs, torch.zeros_like(logs), mask, weighting=weighting).weights_BT[0].tolist()


def test_truncation_cuts_at_the_bounds_and_the_mask_zeroes_outside_them() -> None:
    ratios = [0.25, 1.0, 2.0, 8.0]
    assert of_ratios(ratios, level="token", mode="truncate", upper=2.0) == pytest.approx([0.25, 1.0, 2.0, 2.0])
    assert of_ratios(ratios, level="token", mode="mask", lower=0.5, upper=4.0) == pytest.approx([0.0, 1.0, 2.0, 0.0])


def test_three_hundred_mild_token_ratios_stay_finite_and_bounded_as_a_row() -> None:
    """A row's product is cut in both directions before it is infinite or 0 (B082)."""
    for step, expected in ((0.005, 2.0), (math.log(0.7), math.exp(-20.0))):
        trainer, sampler = torch.full((1, 300), step), torch.zeros(1, 300)
        found = correct(trainer, sampler, torch.ones(1, 300, dtype=torch.bool), weighting=TIS_SEQUENCE)
        torch.testing.assert_close(found.weights_BT, torch.full((1, 300), expected), rtol=1e-4, atol=0.0)


def test_a_cap_on_tokens_keeps_three_hundred_mild_ratios_whole_and_says_how_many_it_leaves_out() -> None:
    """Its product, 4.48, is no reason to (B082)."""
    mask = torch.ones(2, 300, dtype=torch.bool)
    trainer = torch.stack([torch.full((300,), 0.005), torch.full((300,), math.log(3.5))])
    weighting = Weighting("token", "mask", lower=0.5, upper=3.0)
    found = correct(trainer, torch.zeros(2, 300), mask, weighting=weighting)
    torch.testing.assert_close(found.weights_BT[0], torch.full((300,), math.exp(0.005)))
    assert (found.weights_BT[1] == 0).all()
    assert finish(found.metrics, found.extremes)["weights/frac_out_of_bounds"] == 0.5


def test_a_nan_of_the_sampler_costs_its_token_but_not_its_row() -> None:
    trainer, sampler = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-1.0, NAN, -1.5]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    for weighting in (TIS, TIS_SEQUENCE, ICEPOP):
        found = correct(trainer, sampler, mask, weighting=weighting, rules=(Rule("seq_sum", "k2", upper=1.0),))
        assert found.keep_BT.tolist() == [[True, False, True]]
        assert found.nonfinite_BT.tolist() == [[False, True, False]]
        assert found.weights_BT[0, 1] == 0
        assert found.weights_BT.isfinite().all()
        assert (found.weights_BT[0, [0, 2]] > 0).all()


def test_weights_and_the_kept_mask_carry_no_gradient() -> None:
    trainer, sampler, mask = policies(0)
    found = correct(trainer.requires_grad_(), sampler, mask, weighting=TIS, rules=(Rule("token", "k3", upper=0.3),))
    assert not found.weights_BT.requires_grad
    assert not found.keep_BT.requires_grad


@pytest.mark.parametrize("weighting", [TIS, TIS_SEQUENCE, ICEPOP], ids=["tis", "tis_sequence", "icepop"])
def test_metrics_of_micro_batches_add_up_to_those_of_the_batch(weighting: Weighting) -> None:
    trainer, sampler, mask = policies(1)
    rules = (Rule("seq_mean", "k3", upper=0.4), Rule("token", "k1", bounds=(0.4, 3.0)))

    def measured(rows: slice) -> list[tuple]:  # type: ignore[type-arg]  # pairs and extremes of three functions
        parts = (trainer[rows], sampler[rows], mask[rows])
        found = correct(*parts, weighting=weighting, rules=rules)
        return [(found.metrics, found.extremes), mismatch(*parts), probability_difference(*parts)]

    whole = measured(slice(None))
    split = [one for rows in (slice(0, 1), slice(1, 2), slice(2, 6)) for one in measured(rows)]
    got = finish(add(sums for sums, _ in split), outermost(extremes for _, extremes in split))
    assert got == pytest.approx(finish(add(s for s, _ in whole), outermost(e for _, e in whole)), rel=1e-6)
    assert {"weights/ess", "weights/seq_std", "prob_diff/pearson", "mismatch/log_ppl_diff_min"} <= got.keys()


def test_normalized_weights_have_mean_one_and_a_mean_of_zero_changes_nothing() -> None:
    weights = torch.tensor([[0.5, 1.0, 3.0]])
    torch.testing.assert_close(normalized(weights, 1.5).mean(), torch.tensor(1.0))
    assert torch.equal(normalized(weights, 0.0), weights)


def test_a_signed_rule_bounds_the_ratio_of_the_trained_policy_over_the_sampler() -> None:
    ratios = torch.tensor([[0.4, 0.6, 1.0, 1.15, 1.8]])
    mask = torch.ones_like(ratios, dtype=torch.bool)
    rule = Rule("token", "k1", bounds=(0.5, 1.2))
    found = correct(ratios.log(), torch.zeros_like(ratios), mask, weighting=None, rules=(rule,))
    assert found.keep_BT.tolist() == [[False, True, True, True, False]]
    assert finish(found.metrics) == {"reject/token_frac": pytest.approx(0.4), "reject/seq_frac": 1.0}


def test_a_row_rule_rejects_the_whole_row_and_no_other() -> None:
    trainer = torch.tensor([[0.0, 3.0], [0.1, 0.1]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    for level in ("seq_mean", "seq_max", "seq_sum"):
        rule = Rule(level, "k2", upper=1.0)
        found = correct(trainer, torch.zeros(2, 2), mask, weighting=None, rules=(rule,))
        assert found.keep_BT.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(
    "settings",
    [
        {"level": "token", "stat": "k1"},
        {"level": "token", "stat": "k1", "upper": 1.0, "bounds": (0.5, 2.0)},
        {"level": "token", "stat": "k2", "bounds": (0.5, 2.0)},
        {"level": "token", "stat": "k1", "bounds": (2.0, 0.5)},
        {"level": "seq_max", "stat": "k1", "bounds": (0.5, 2.0)},
    ],
)
def test_a_rule_that_cannot_mean_anything_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"k1|k2|bounds"):
        Rule(**settings)  # type: ignore[arg-type]  # wrong on purpose


def test_a_weighting_without_room_between_its_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="lower < upper"):
        Weighting("token", "mask", lower=2.0, upper=1.0)


@pytest.mark.parametrize("threshold", [1e-9, 0.05, 0.3, 1e9])
@pytest.mark.parametrize("number", range(5))
def test_the_second_moment_mask_equals_removing_the_largest_one_by_one(number: int, threshold: float) -> None:
    trainer, sampler, mask = policies(number)
    kept = [(float((trainer[i, j].double() - sampler[i, j].double()) ** 2), i, j) for i, j in mask.nonzero().tolist()]
    kept.sort()
    while len(kept) > 1 and sum(x for x, _, _ in kept) / len(kept) >= threshold:
        kept.pop()
    expected = torch.zeros_like(mask)
    for _, i, j in kept:
        expected[i, j] = True
    assert torch.equal(minimum_variance_kept(trainer, sampler, mask, threshold=threshold), expected)


def test_identical_policies_have_no_mismatch_and_no_correlation_to_speak_of() -> None:
    logprobs, mask = torch.full((2, 3), -1.0), torch.ones(2, 3, dtype=torch.bool)
    values = finish(*mismatch(logprobs, logprobs, mask)) | finish(*probability_difference(logprobs, logprobs, mask))
    assert values["mismatch/kl_rollout_train"] == values["mismatch/chi2_seq"] == values["prob_diff/std"] == 0
    assert "prob_diff/pearson" not in values
