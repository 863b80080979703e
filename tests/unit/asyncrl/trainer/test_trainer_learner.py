"""What a step does before and beside the policy's loss: columns, penalties on rewards, whole-mini-batch rules."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.algorithms.advantages import row_scores, spread
from asyncrl.algorithms.base import Overlong, Selection, alone
from asyncrl.algorithms.kl import kl_estimate
from asyncrl.algorithms.logprobs import sum_pi_squared
from asyncrl.algorithms.returns import discounted_returns
from asyncrl.errors import CheckpointError
from asyncrl.trainer.columns import COLUMNS
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.micro_batch import micro_batches
from asyncrl.trainer.selection import select
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from buffer import Row, Span
from tests.support.rank_threads import RankThreads
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 4, 3, seed=2)


def weights(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters().items()}


def score_as_advantage(rewards, mask_BT, group_ids_B, *, total=alone):
    return spread(row_scores(rewards), mask_BT)


def test_every_column_of_a_batch_is_what_its_name_says(model_dir, groups):
    policy = make_policy(model_dir, algorithm_kl_coef=0.1)
    batch = make_batch(policy, groups)
    start = StartOfStep(batch, policy)
    made = {name: COLUMNS[name].make(start, policy.algorithm) for name in ("logprobs_BT", "reference_BT", "sampler_BT")}
    sampled_JS = start.joined.sampled_JS
    assert torch.equal(made["sampler_BT"][sampled_JS], torch.from_numpy(batch.sampler_N))
    torch.testing.assert_close(made["reference_BT"], made["logprobs_BT"])  # version 0 is its own reference
    assert (made["logprobs_BT"][~sampled_JS] == 0).all()
    squares_JS = COLUMNS["sum_pi_squared_BT"].make(start, policy.algorithm)
    rows = batch.rows_by_mini_batch[0]
    (micro,) = micro_batches(batch, rows, 10**6, torch.device("cpu"), is_packed=policy.model.is_packed)
    plain_N = torch.zeros(batch.num_trained)
    with torch.no_grad():
        plain_N[torch.from_numpy(micro.index_N)] = sum_pi_squared(policy.model.logits(micro))
    torch.testing.assert_close(start.joined.pick(squares_JS), plain_N)
    weights_JS = COLUMNS["weights_BT"].make(start, policy.algorithm)
    ratio_JS = (made["logprobs_BT"] - made["sampler_BT"]).exp().clamp(max=2.0)
    torch.testing.assert_close(weights_JS, torch.where(sampled_JS, ratio_JS, 0.0))


def test_reward_parts_are_columns_in_the_order_of_their_names(model_dir, groups):
    parts = [{"style": 0.5, "right": 1.0}, {"right": 0.0}, {"style": 1.0}]
    members = tuple(replace(t, reward_parts=p) for t, p in zip(groups[0].trajectories, parts, strict=True))
    policy = make_policy(model_dir)
    start = StartOfStep(make_batch(policy, [replace(groups[0], trajectories=members)]), policy)
    found = COLUMNS["components_KB"].make(start, policy.algorithm)
    np.testing.assert_array_equal(found, [[1.0, 0.0, np.nan], [0.5, np.nan, 1.0]])


def with_reference_noise(learner, scale):
    """A policy that has left its reference: its weights are no longer version 0's."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("micro_batch_tokens", [10, 10_000])
def test_kl_in_the_reward_is_taken_off_each_token_and_its_coefficient_follows_the_target(
    model_dir, groups, micro_batch_tokens
):
    settings = {
        "reward_kl_coef": 0.5,
        "reward_kl_target": 0.01,
        "reward_kl_horizon": 100.0,
        "reward_kl_estimator": "k2",
    }
    policy = make_policy(
        model_dir,
        micro_batch_tokens=micro_batch_tokens,
        **{f"algorithm_{key}": value for key, value in settings.items()},
    )
    policy.algorithm = replace(policy.algorithm, advantage=score_as_advantage)
    learner = Learner(policy)
    with_reference_noise(learner, 0.05)
    batch = make_batch(policy, groups)
    start = StartOfStep(batch, policy)
    kl_JS = kl_estimate(start.joined.place(start.logprobs_N), start.joined.place(start.reference_N), "k2")
    kl_JS = torch.where(start.joined.sampled_JS, kl_JS, 0.0)
    lengths_J = start.joined.sampled_JS.sum(dim=-1)
    values = learner.step(batch).values()
    shaped = batch.trajectories.rewards_J - 0.5 * kl_JS.sum(dim=-1).numpy()
    assert values["critic/rewards/mean"] == pytest.approx(shaped.mean(), rel=1e-4)
    assert values["critic/advantages/max"] == pytest.approx(shaped.max(), rel=1e-4)
    mean_kl = float((kl_JS.sum(dim=-1) / lengths_J).mean())
    assert values["actor/reward_kl_penalty"] == pytest.approx(mean_kl, rel=1e-4)
    assert values["actor/reward_kl_coef"] == 0.5
    assert mean_kl > 0.0121  # far above the target, so the error is clipped at 20 %
    assert learner.state() == {"reward_kl_coef": pytest.approx(0.5 * (1 + 0.2 * 12 / 100))}


def test_an_outcome_reward_reaches_the_returns_though_the_last_token_is_not_trained(model_dir):
    (group,) = make_groups(model_dir, 1, 2, rewards=[[1.0, 0.0]], noise=0.0)
    first, second = group.trajectories
    bare = Row(  # a context without a prompt: nothing predicts its only token
        token_ids=np.array([7], dtype=np.uint32),
        mask=np.array([True]),
        logprobs=np.array([-1.0], dtype=np.float32),
        spans=(Span(first.rows[0].spans[0].version, 0, 1),),
        num_prompt_tokens=0,
    )
    group = replace(group, trajectories=(replace(first, rows=(*first.rows, bare)), second))
    policy = make_policy(model_dir, algorithm_reward_kl_coef=0.1, algorithm_name="ppo_gae")
    policy.algorithm = replace(
        policy.algorithm,
        columns=("sampler_BT",),
        advantage=lambda r, m, g, total, sampler_BT: discounted_returns(r, m, gamma=1.0),
    )
    batch = make_batch(policy, [group])
    values = Learner(policy).step(batch).values()
    assert batch.masked == {("first_token", "toy"): 1}
    assert values["critic/advantages/max"] == pytest.approx(1.0)  # the policy is its own reference: no penalty


def test_a_coefficient_goes_on_where_the_checkpoint_left_it(model_dir):
    learner = Learner(make_policy(model_dir, algorithm_reward_kl_coef=0.1, algorithm_reward_kl_target=0.05))
    learner.restore({"reward_kl_coef": 0.25, "step": 3})
    assert learner.state() == {"reward_kl_coef": 0.25}
    assert learner.kl_controller.target == 0.05
    with pytest.raises(CheckpointError, match="no coefficient of the KL penalty"):
        learner.restore({"step": 3})
    plain = Learner(make_policy(model_dir))
    plain.restore({"step": 3})
    assert plain.state() == {}


def test_long_answers_lose_reward_in_proportion_to_the_buffer(model_dir, groups):
    policy = make_policy(model_dir)
    policy.algorithm = replace(policy.algorithm, advantage=score_as_advantage, overlong=Overlong(6, 4, 2.0))
    batch = make_batch(policy, groups)
    values = Learner(policy).step(batch).values()
    lengths = batch.trajectories.num_response_J
    expected = batch.trajectories.rewards_J - 2.0 * np.clip((lengths - 2) / 4, 0, 1)
    assert values["critic/rewards/min"] == pytest.approx(expected.min())
    assert values["critic/rewards/mean"] == pytest.approx(expected.mean())
    assert values["critic/overlong_penalty/mean"] == pytest.approx((expected - batch.trajectories.rewards_J).mean())


def highest_third(logprobs_N, proximal_N, sampler_N, advantages_N, *, generator):
    """Depends on all tokens of the mini-batch, and on chance for nothing."""
    return logprobs_N > logprobs_N.quantile(2 / 3)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_tokens": 10}])
def test_a_selection_looks_at_the_mini_batch_and_not_at_its_parts(model_dir, groups, settings):
    policy = make_policy(model_dir, grad_clip=1e9, **settings)
    policy.algorithm = replace(policy.algorithm, selection=Selection(highest_third, rejects=True))
    batch = make_batch(policy, groups)
    picked = highest_third(policy.logprobs(batch), None, None, None, generator=None)
    values = train(policy, batch).values()
    assert values["selected_frac"] == pytest.approx(float(picked.float().mean()))
    # What is rejected has weight 0 in a sum with the same denominators: as if its advantage were 0.
    plain = make_policy(model_dir, grad_clip=1e9)
    start = StartOfStep(batch, plain)
    advantages_N = Learner(plain).advantages(start, torch.from_numpy(batch.trajectories.rewards_J))
    tally = Tally()
    plain.step(start, torch.where(picked, 0.0, advantages_N), tally)
    assert values["actor/grad_norm"] == pytest.approx(tally.values()["actor/grad_norm"], rel=1e-4)


def test_ranks_get_their_own_part_of_what_was_selected_over_all_of_them(model_dir, groups):
    policy = make_policy(model_dir)
    whole = make_batch(policy, groups)
    expected = highest_third(policy.logprobs(whole), None, None, None, generator=None)
    threads = RankThreads(2)

    parts = [make_batch(policy, part) for part in (groups[:1], groups[1:])]
    logprobs = [policy.logprobs(part) for part in parts]

    def own(rank):
        batch, logprobs_N = parts[rank.rank], logprobs[rank.rank]
        rows = batch.rows_by_mini_batch[0]
        return select(highest_third, batch, rows, logprobs_N, logprobs_N, torch.zeros_like(logprobs_N), rank)

    assert torch.equal(torch.cat(threads.run(own)), expected)


@pytest.mark.parametrize("level", ["tis", "tis_sequence"])
def test_normalised_weights_have_mean_one_over_the_mini_batch(model_dir, groups, level):
    metrics = {}
    for tokens in (10, 10_000):
        policy = make_policy(
            model_dir,
            grad_clip=1e9,
            micro_batch_tokens=tokens,
            algorithm_correction=level,
            algorithm_correction_normalize=True,
        )
        metrics[tokens] = train(policy, make_batch(policy, groups)).values()
    assert metrics[10]["actor/grad_norm"] == pytest.approx(metrics[10_000]["actor/grad_norm"], rel=1e-4)
    plain = make_policy(model_dir, grad_clip=1e9, algorithm_correction=level)
    values = train(plain, make_batch(plain, groups)).values()
    mean = values["weights/mean" if level == "tis" else "weights/seq_mean"]
    assert values["actor/grad_norm"] / mean == pytest.approx(metrics[10]["actor/grad_norm"], rel=1e-3)
    assert abs(mean - 1) > 1e-4


def test_an_interpolated_centre_is_the_sampler_for_fresh_tokens(model_dir, groups):
    """Tokens of lag 0 and 1 are centred on the sampler itself, whatever the method: no share of the way is gone."""
    policy = make_policy(model_dir, algorithm_proximal="loglinear", algorithm_correction="none", grad_clip=1e9)
    bypass = make_policy(model_dir, algorithm_bypass=True, algorithm_correction="none", grad_clip=1e9)
    values, same = (train(one, make_batch(one, groups)).values() for one in (policy, bypass))
    assert values["actor/grad_norm"] == pytest.approx(same["actor/grad_norm"], rel=1e-5)
    assert values["loss/policy"] == pytest.approx(same["loss/policy"], rel=1e-5)


def test_the_weights_column_rejects_what_the_correction_rejects(model_dir, groups):
    policy = make_policy(model_dir, algorithm_correction="icepop", algorithm_correction_cap=1.05)
    start = StartOfStep(make_batch(policy, groups), policy)
    found_JS = COLUMNS["weights_BT"].make(start, policy.algorithm)
    assert (found_JS[start.joined.trained_JS] == 0).any()
