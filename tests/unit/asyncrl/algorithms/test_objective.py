"""The whole loss of a micro-batch: which policy is compared with which, and what a missing part does."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.corrections import correct
from asyncrl.algorithms.losses import reinforce
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.objective import Objective, policy_objective
from asyncrl.algorithms.rejection import Rule
from asyncrl.algorithms.tables import TIS

GRPO = ALGORITHMS["grpo"]
MASK = torch.tensor([[True, True, True, True]])
SAMPLER = torch.tensor([[-1.0, -1.0, -1.0, -1.0]])
ADVANTAGES = torch.ones(1, 4)
WHOLE = Denominators(tokens=4, sequences=1)


def run(algorithm=GRPO, logprobs=SAMPLER, sampler=SAMPLER, **given) -> tuple[Objective, torch.Tensor]:  # type: ignore[no-untyped-def]
    leaf = logprobs.clone().requires_grad_()
    objective = policy_objective(algorithm, leaf, sampler, ADVANTAGES, MASK, WHOLE, **given)
    objective.loss.backward()
    assert leaf.grad is not None
    return objective, leaf.grad


def test_one_step_a_batch_needs_no_proximal_logprobs_and_weighs_by_the_sampler() -> None:
    logprobs = SAMPLER + torch.tensor([[1.5, 0.5, 3.0, 1.0]]).log()
    objective, grad = run(logprobs=logprobs)
    weights = (logprobs - SAMPLER).exp().clamp(max=2.0)
    torch.testing.assert_close(grad, -weights / 4)
    torch.testing.assert_close(objective.loss, (-weights / 4).sum())
    assert finish(objective.metrics)["approx_kl"] == 0


def test_a_rejected_token_leaves_the_sum_and_stays_in_the_denominator() -> None:
    logprobs = torch.tensor([[-1.0, -1.0, -1.0, -9.0]])
    rules = (Rule("token", "k2", upper=1.0),)
    algorithm = replace(GRPO, correction=partial(correct, weighting=None, rules=rules))
    objective, grad = run(algorithm, logprobs)
    assert objective.loss == -0.75
    assert grad.tolist() == [[-0.25, -0.25, -0.25, 0.0]]


def test_without_a_correction_the_sampler_is_not_looked_at() -> None:
    objective, grad = run(replace(GRPO, correction=None), sampler=torch.full((1, 4), torch.nan))
    assert objective.correction is None
    assert (grad == -0.25).all()


def test_in_bypass_the_sampler_is_the_centre_of_the_ratio_and_the_weight_is_fresh() -> None:
    sampler = torch.tensor([[-1.5, -1.0, -1.0, -1.0]])
    ratio = torch.tensor([[0.5, 0.0, 0.0, 0.0]]).exp()
    plain = replace(GRPO, bypass=True, correction=None)
    _, grad = run(plain, sampler=sampler)
    assert grad[0, 0] == 0  # 1.65 is outside the clip range around the sampler's policy
    weighted = replace(plain, loss=reinforce, correction=partial(correct, weighting=TIS))
    _, grad = run(weighted, sampler=sampler)
    torch.testing.assert_close(grad, -ratio / 4)


def test_the_kl_is_measured_without_a_coefficient_and_pulls_back_with_one() -> None:
    reference = SAMPLER - 1.0
    without, grad_without = run(reference_BT=reference)
    with_kl, grad = run(replace(GRPO, kl_coef=0.1, kl_estimator="k2"), reference_BT=reference)
    assert finish(without.metrics)["kl"] == pytest.approx(0.36787944)  # e^-1 + 1 - 1
    assert "loss/kl" not in without.metrics
    assert finish(with_kl.metrics)["loss/kl"] == pytest.approx(0.5)
    torch.testing.assert_close(grad - grad_without, torch.full((1, 4), 0.1 / 4))


def test_a_reference_that_is_not_finite_is_counted_and_leaves_the_rest_alone() -> None:
    reference = torch.tensor([[-1.0, -torch.inf, torch.nan, -1.0]])
    objective, grad = run(replace(GRPO, kl_coef=0.1), reference_BT=reference)
    assert grad.isfinite().all()
    assert objective.metrics["nonfinite_tokens"][0] == 2


def test_the_entropy_is_a_bonus() -> None:
    entropy = torch.full((1, 4), 2.0).requires_grad_()
    objective, _ = run(replace(GRPO, entropy_coef=0.01), entropy_BT=entropy)
    assert entropy.grad is not None
    torch.testing.assert_close(entropy.grad, torch.full((1, 4), -0.01 / 4))
    values = finish(objective.metrics)
    assert values["entropy"] == 2.0
    assert values["loss/total"] == pytest.approx(values["loss/policy"] - 0.02)


@pytest.mark.parametrize(("key", "tensor"), [("kl_coef", "reference_BT"), ("entropy_coef", "entropy_BT")])
def test_a_coefficient_without_its_tensor_is_refused(key: str, tensor: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm.{key} = 0.1, but {tensor} was not given"):
        run(replace(GRPO, **{key: 0.1}))
