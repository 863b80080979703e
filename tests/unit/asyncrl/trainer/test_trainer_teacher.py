"""A step with a teacher: the distillation term pulls the policy to what the rows' columns say, whatever the split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.trainer.metric_names import renamed
from buffer import Group, Row
from tests.support.tiny_policy import (
    LOADING,
    advantages_of,
    make_batch,
    make_groups,
    make_policy,
    train,
    write_tiny_model,
)

EQUAL = [[1.0] * 4] * 3
"""Rewards without a difference: only the teacher teaches."""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    directory = write_tiny_model(tmp_path_factory.mktemp("teacher"), seed=7)
    with LOADING:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return model


@pytest.fixture(scope="module")
def groups(model_dir: Path) -> list[Group]:
    return make_groups(model_dir, 3, 4, seed=2, rewards=EQUAL)


def scored(row: Row, teacher: torch.nn.Module) -> Row:
    ids = torch.from_numpy(row.token_ids.astype(np.int64))
    with torch.no_grad():
        logprobs_TV = teacher(input_ids=ids[None]).logits[0].log_softmax(-1)
    own, top = np.zeros(len(ids), dtype=np.float32), np.zeros((len(ids), 5), dtype=np.float32)
    top_ids = np.zeros((len(ids), 5), dtype=np.int32)
    for place in np.flatnonzero(row.mask):
        own[place] = logprobs_TV[place - 1, ids[place]]
        best = logprobs_TV[place - 1].topk(5)
        top[place], top_ids[place] = best.values, best.indices
    columns = {"logprobs": own, "topk_logprobs": top, "topk_ids": top_ids}
    return replace(row, columns={f"teacher/big/{name}": column for name, column in columns.items()})


def of_teacher(groups: Sequence[Group], teacher: torch.nn.Module, *, every: int = 1) -> list[Group]:
    """The groups with a teacher's columns on every so many trajectories."""
    return [
        replace(
            group,
            trajectories=tuple(
                replace(one, rows=tuple(scored(row, teacher) for row in one.rows)) if number % every == 0 else one
                for number, one in enumerate(group.trajectories)
            ),
        )
        for group in groups
    ]


@pytest.mark.parametrize("estimator", ["k2", "k3+", "topk"])
def test_the_term_pulls_the_policy_to_its_teacher(
    model_dir: Path, groups: list[Group], teacher: torch.nn.Module, estimator: str
) -> None:
    policy = make_policy(model_dir, lr=1e-2, algorithm_distill_coef=1.0, algorithm_distill_estimator=estimator)
    batch = make_batch(policy, of_teacher(groups, teacher))
    steps = [renamed(train(policy, batch).values()) for _ in range(10)]
    assert steps[0]["distill/scored_frac"] == steps[0]["actor/distill_frac"] == 1.0
    assert steps[0]["actor/pg_loss"] == pytest.approx(0.0, abs=1e-6)
    assert steps[0]["actor/loss"] == pytest.approx(steps[0]["actor/distill_loss"], abs=1e-6)
    assert steps[-1]["actor/distill_kl"] < 0.5 * steps[0]["actor/distill_kl"]


@pytest.mark.parametrize("estimator", ["k2", "topk"])
def test_a_step_does_not_depend_on_the_split_also_where_only_some_rows_have_a_teacher(
    model_dir: Path, groups: list[Group], teacher: torch.nn.Module, estimator: str
) -> None:
    metrics = []
    for tokens in (16384, 12):
        policy = make_policy(
            model_dir,
            micro_batch_tokens=tokens,
            grad_clip=1e9,
            algorithm_distill_coef=1.0,
            algorithm_distill_estimator=estimator,
        )
        metrics.append(renamed(train(policy, make_batch(policy, of_teacher(groups, teacher, every=2))).values()))
    assert 0 < metrics[0]["actor/distill_frac"] < 1
    for name in ("actor/grad_norm", "actor/distill_loss", "actor/distill_kl", "distill/reverse_kl"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4), name


def test_the_advantage_of_a_token_is_the_teachers_logprob_minus_the_policys(
    model_dir: Path, groups: list[Group], teacher: torch.nn.Module
) -> None:
    policy = make_policy(model_dir, algorithm_name="opd")
    with_teacher = of_teacher(groups, teacher, every=2)
    batch = make_batch(policy, with_teacher)
    got = advantages_of(policy, batch)
    said = [
        row.columns["teacher/big/logprobs"][row.mask] if row.columns else np.full(row.num_sampled, np.nan)
        for group in with_teacher
        for trajectory in group.trajectories
        for row in trajectory.rows
    ]
    gaps = np.concatenate(said) - policy.logprobs(batch).numpy()
    np.testing.assert_allclose(got, np.nan_to_num(np.clip(gaps, -10, 10)), atol=1e-5)
    assert np.abs(got).max() > 0.1
