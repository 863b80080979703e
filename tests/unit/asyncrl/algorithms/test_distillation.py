"""Distillation's advantage and losses on small numbers, and against autograd of the plain formula."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.distillation import (
    distillation_loss,
    topk_distance,
    topk_forward_kl,
    topk_loss,
    towards_teacher,
)
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.objective import policy_objective
from tests.support.algorithm_batch import Batch, run

NAN = torch.nan
MASK = torch.tensor([[True, True, True], [True, True, False]])
STUDENT = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.5, -9.0]])
TEACHER = torch.tensor([[-0.5, -2.0, -20.0], [NAN, -1.0, NAN]])


def advantage(
    rewards: list[float], *, student: Tensor = STUDENT, teacher: Tensor = TEACHER, **settings: object
) -> Tensor:
    groups = torch.zeros(len(rewards), dtype=torch.int64)
    given = {"logprobs_BT": student, "teacher_BT": teacher, **settings}
    return towards_teacher(torch.tensor(rewards), MASK, groups, **given)  # type: ignore[arg-type]  # settings by name


def test_the_advantage_is_minus_the_log_ratio_to_the_teacher_cut_at_ten() -> None:
    expected = torch.tensor([[0.5, 0.0, -10.0], [0.0, 0.5, 0.0]])
    torch.testing.assert_close(advantage([1.0, 0.0]), expected)


def test_the_task_reward_plays_no_part_in_the_advantage() -> None:
    assert torch.equal(advantage([0.0, 5.0]), advantage([7.0, -2.0]))


def test_a_row_whose_teacher_failed_has_no_score_and_gets_no_advantage() -> None:
    got = advantage([NAN, 1.0])
    assert (got[0] == 0).all()
    assert got[1, 1] == 0.5


def test_tokens_that_no_teacher_scored_get_no_loss_no_gradient_and_do_not_count_as_broken() -> None:
    logprobs = STUDENT.clone().requires_grad_()
    tokens = distillation_loss(logprobs, TEACHER, MASK, kind="k2")
    tokens.loss_BT.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[1, 0] == logprobs.grad[1, 2] == tokens.loss_BT[1, 0] == 0
    assert not tokens.nonfinite_BT.any()
    assert finish(tokens.metrics)["distill_frac"] == pytest.approx(4 / 5)


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf])
def test_a_scored_token_without_a_finite_distance_is_left_out_and_counted(broken: float) -> None:
    teacher = TEACHER.clone()
    teacher[0, 0] = broken
    tokens = distillation_loss(STUDENT, teacher, MASK, kind="k3")
    assert tokens.nonfinite_BT.sum() == 1
    assert tokens.nonfinite_BT[0, 0]
    assert advantage([1.0, 1.0], teacher=teacher)[0, 0] == 0


@pytest.mark.parametrize("kind", ["k1", "kl"])
def test_k1_is_refused_as_a_loss_because_its_gradient_has_mean_zero(kind: str) -> None:
    with pytest.raises(ValueError, match=r"Use 'k2', or '(k1|kl)\+'"):
        distillation_loss(STUDENT, TEACHER, MASK, kind=kind)


@seed(0)
@settings(max_examples=30, deadline=None, database=None)
@given(number=st.integers(0, 10_000), kind=st.sampled_from(["k2", "k1+", "k3+", "abs+"]))
def test_the_gradient_of_straight_through_estimators_is_that_of_half_the_squared_log_ratio(
    number: int, kind: str
) -> None:
    rng = torch.Generator().manual_seed(number)
    student = (-3 * torch.rand(2, 3, generator=rng)).double().requires_grad_()
    teacher = (-3 * torch.rand(2, 3, generator=rng)).double()
    distillation_loss(student, teacher, MASK, kind=kind).loss_BT.sum().backward()
    expected = torch.where(MASK, student.detach() - teacher, 0.0)
    torch.testing.assert_close(student.grad, expected)


def test_k3_has_the_gradient_of_the_plain_formula() -> None:
    rng = torch.Generator().manual_seed(3)
    student = (-3 * torch.rand(2, 3, generator=rng)).double().requires_grad_()
    teacher = (-3 * torch.rand(2, 3, generator=rng)).double()
    assert torch.autograd.gradcheck(lambda x: distillation_loss(x, teacher, MASK, kind="k3").loss_BT.sum(), (student,))


def test_forward_kl_over_the_whole_vocabulary_is_the_kl_and_its_gradient_that_of_cross_entropy() -> None:
    rng = torch.Generator().manual_seed(4)
    student = torch.randn(3, 5, generator=rng).double().requires_grad_()
    teacher = torch.randn(3, 5, generator=rng).double().log_softmax(dim=-1)
    got = topk_forward_kl(student, *teacher.topk(5, dim=-1), logp_min=None)
    plain = torch.nn.functional.kl_div(student.log_softmax(-1), teacher, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(got.value_N, plain)
    got.value_N.sum().backward()
    torch.testing.assert_close(student.grad, student.detach().softmax(-1) - teacher.exp())
    assert got.overlap_N.tolist() == [5, 5, 5]
    torch.testing.assert_close(got.student_mass_N, torch.ones(3).double())


def test_the_distillation_term_is_part_of_the_loss_with_its_coefficient() -> None:
    batch = Batch(12)
    row = replace(ALGORITHMS["grpo"], aggregation="token-sum", distill_coef=0.5, distill_estimator="k2")
    without, _ = run(replace(row, distill_coef=0.0), batch)
    objective, _ = run(row, batch)
    plain = torch.where(batch.mask, (batch.logprobs - batch.teacher).square() / 2, 0.0).sum()
    torch.testing.assert_close(objective.loss - without.loss, 0.5 * plain)
    numbers = finish(objective.metrics, objective.extremes)
    assert numbers["loss/distill"] == pytest.approx(float(plain), rel=1e-5)
    assert numbers["distill_kl"] == pytest.approx(float(plain) / int(batch.mask.sum()), rel=1e-5)


def test_a_coefficient_without_a_teachers_logprobs_is_an_error() -> None:
    row = replace(ALGORITHMS["grpo"], distill_coef=0.5)
    empty = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"distill_coef = 0\.5, but teacher_BT was not given"):
        policy_objective(row, empty, empty, empty, empty > 0, Denominators(1, 1))


def test_the_distance_over_likeliest_tokens_has_no_gradient_where_no_teacher_scored_and_is_cut_at_ten() -> None:
    rng = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 6, generator=rng).double()
    logits[2, 0] = -200.0
    logits.requires_grad_()
    teacher = torch.tensor([[-0.5, -1.0], [NAN, NAN], [-0.01, -5.0]]).double()
    ids = torch.tensor([[1, 2], [0, 0], [0, 3]])
    distance = topk_distance(logits, teacher, ids)
    assert distance.isnan().tolist() == [False, True, False]
    tokens = topk_loss(distance[None], torch.tensor([[True, True, True]]))
    tokens.loss_BT.sum().backward()
    assert logits.grad is not None
    alone = logits.detach()[:1].clone().requires_grad_()
    topk_forward_kl(alone, teacher[:1], ids[:1]).value_N.sum().backward()
    torch.testing.assert_close(logits.grad[:1], alone.grad)
    assert (logits.grad[1:2] == 0).all()
    assert 9 < tokens.loss_BT[0, 2] <= 10
    assert finish(tokens.metrics)["distill_frac"] == pytest.approx(2 / 3)
    assert not tokens.nonfinite_BT.any()


def test_no_scored_token_still_hangs_on_the_logits() -> None:
    logits = torch.zeros(2, 4, requires_grad=True)
    distance = topk_distance(logits, torch.full((2, 1), NAN), torch.zeros(2, 1, dtype=torch.int64))
    topk_loss(distance[None], torch.ones(1, 2, dtype=torch.bool)).loss_BT.sum().backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()
