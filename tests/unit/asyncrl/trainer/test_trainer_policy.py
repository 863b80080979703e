"""The policy: logprobs of a plain forward pass, steps that do not depend on the split, and what stops them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.errors import ConfigError, NumericsError
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.micro_batch import micro_batches
from asyncrl.trainer.model import load_language_model
from buffer import Group, Row, Trajectory
from tests.support.tiny_policy import advantages_of, make_batch, make_groups, make_policy, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 4, 4, seed=1)


def weights(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters().items()}


def after_one_step(model_dir, groups, num_mini_batches=1, **settings):
    policy = make_policy(model_dir, **settings)
    metrics = renamed(train(policy, make_batch(policy, groups, num_mini_batches)).values())
    return weights(policy), metrics


def largest_difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_logprobs_are_those_of_a_plain_forward_pass_row_by_row(model_dir, groups):
    policy = make_policy(model_dir)
    batch = make_batch(policy, groups)
    plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    found = torch.zeros(batch.num_trained)
    for micro in micro_batches(batch, batch.rows_by_mini_batch[0], 40, CPU, is_packed=policy.model.is_packed):
        with torch.no_grad():
            outputs = policy.model.outputs(micro, temperature=0.7, entropy_has_gradient=False)
        found[torch.from_numpy(micro.index_N)] = outputs.logprobs_N
    expected = []
    for row in batch.rows:
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        with torch.no_grad():
            logprobs = (plain(input_ids=ids[None]).logits[0] / 0.7).log_softmax(-1)
        expected += [float(logprobs[t - 1, ids[t]]) for t in np.flatnonzero(row.mask)]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"])
def test_a_step_does_not_depend_on_the_split_into_micro_batches(model_dir, groups, mode):
    whole, metrics = after_one_step(model_dir, groups, algorithm_loss_agg_mode=mode, grad_clip=1e9)
    parts, metrics_of_parts = after_one_step(
        model_dir, groups, algorithm_loss_agg_mode=mode, grad_clip=1e9, micro_batch_tokens=12
    )
    assert metrics["actor/grad_norm"] == pytest.approx(metrics_of_parts["actor/grad_norm"], rel=1e-4)
    assert metrics["actor/pg_loss"] == pytest.approx(metrics_of_parts["actor/pg_loss"], abs=1e-5)
    assert metrics["rollout_corr/kl"] == pytest.approx(metrics_of_parts["rollout_corr/kl"], abs=1e-5)
    # AdamW's first step divides a gradient by itself, so weights whose gradient is rounding noise may differ.
    close = [float(((whole[n] - parts[n]).abs() < 1e-4).float().mean()) for n in whole]
    assert min(close) > 0.95


def test_the_same_step_twice_is_the_same_bit_for_bit(model_dir, groups):
    one, metrics = after_one_step(model_dir, groups)
    other, again = after_one_step(model_dir, groups)
    assert largest_difference(one, other) == 0.0
    assert metrics == again


def test_steps_raise_the_probability_of_what_was_rewarded(model_dir):
    groups = make_groups(model_dir, 2, 2, rewards=[[1.0, 0.0], [0.0, 1.0]], noise=0.0)
    policy = make_policy(model_dir, lr=3e-3)
    before = policy.logprobs(make_batch(policy, groups))
    for _ in range(3):
        train(policy, make_batch(policy, groups))
    batch = make_batch(policy, groups)
    change = (policy.logprobs(batch) - before).numpy()
    assert change[advantages_of(policy, batch) > 0].mean() > 0.05
    assert change[advantages_of(policy, batch) < 0].mean() < -0.05


def test_one_optimizer_step_is_taken_at_ratio_one(model_dir, groups):
    _, metrics = after_one_step(model_dir, groups)
    assert metrics["actor/ppo_kl"] == 0.0
    assert metrics["actor/pg_clipfrac"] == 0.0


def test_several_passes_measure_against_the_start_of_the_step(model_dir, groups):
    _, metrics = after_one_step(model_dir, groups, num_mini_batches=2, ppo_epochs=2, ppo_mini_batches=2)
    _, single = after_one_step(model_dir, groups)
    assert metrics["actor/ppo_kl"] != 0.0
    assert metrics["rollout_corr/kl"] == pytest.approx(single["rollout_corr/kl"], abs=1e-5)


def test_optimizer_steps_are_counted(model_dir, groups):
    policy = make_policy(model_dir, ppo_epochs=2, ppo_mini_batches=2)
    train(policy, make_batch(policy, groups, 2))
    assert policy.optimizer_steps == 4


def test_a_batch_without_trained_tokens_moves_nothing(model_dir):
    policy = make_policy(model_dir, algorithm_filter_zero_variance=True)
    train(policy, make_batch(policy, make_groups(model_dir, 2, 2, rewards=[[0.0, 1.0]] * 2)))
    before = weights(policy)
    metrics = train(policy, make_batch(policy, make_groups(model_dir, 2, 2, rewards=[[1.0, 1.0]] * 2))).values()
    assert largest_difference(before, weights(policy)) == 0.0
    assert policy.optimizer_steps == 1
    assert metrics["actor/steps_without_tokens"] == 1.0


def test_groups_left_out_of_the_loss_leave_the_gradient_as_it_is_without_them(model_dir):
    groups = make_groups(model_dir, 3, 2, rewards=[[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    with_all, _ = after_one_step(model_dir, groups, algorithm_filter_zero_variance=True)
    without, _ = after_one_step(model_dir, [groups[0], groups[2]], algorithm_filter_zero_variance=True)
    assert largest_difference(with_all, without) < 1e-6


def test_the_kl_term_holds_the_policy_to_version_zero(model_dir):
    groups = make_groups(model_dir, 2, 2, rewards=[[1.0, 0.0]] * 2)
    free, held = make_policy(model_dir, lr=3e-3), make_policy(model_dir, lr=3e-3, algorithm_kl_coef=5.0)
    assert free._reference is None
    for _ in range(4):
        train(free, make_batch(free, groups))
        metrics = renamed(train(held, make_batch(held, groups)).values())
    start = weights(make_policy(model_dir))
    assert metrics["actor/kl_loss"] > 0
    moved = [sum(float((w[n] - start[n]).norm()) for n in start) for w in (weights(free), weights(held))]
    assert moved[1] < moved[0]


def test_an_offloaded_reference_says_the_same(model_dir, groups):
    here, away = (make_policy(model_dir, algorithm_kl_coef=0.1, offload_reference=away) for away in (False, True))
    batch = make_batch(here, groups)
    assert torch.equal(here.reference_logprobs(batch), away.reference_logprobs(batch))
    assert next(away._reference.module.parameters()).device.type == "cpu"


def test_too_many_nonfinite_tokens_stop_the_run_before_the_optimizer(model_dir, groups):
    policy = make_policy(model_dir)
    with torch.no_grad():
        policy.named_parameters()["model.norm.weight"][0] = float("nan")
    before = weights(policy)
    with pytest.raises(
        NumericsError, match=r"tokens of this step have a NaN or infinite.* of groups 0.1, 1.1, 2.1, 3.1"
    ):
        train(policy, make_batch(policy, groups))
    assert policy.optimizer_steps == 0
    for name, value in weights(policy).items():
        assert torch.equal(value, before[name]) or torch.isnan(value).any()


def test_what_is_clipped_and_rejected_is_told_by_lag(model_dir):
    groups = make_groups(model_dir, 4, 4, seed=3, noise=1.5)
    policy = make_policy(model_dir, algorithm_correction="icepop", algorithm_bypass=False, ppo_epochs=2, lr=0.1)
    batch = make_batch(policy, groups)
    lags_N = (np.arange(batch.num_trained) % 2) * 3
    values = train(policy, replace(batch, lags_N=lags_N)).values()
    for name, whole in (("rejected_frac", "weights/frac_out_of_bounds"), ("clipped_frac", "clip_frac")):
        shares = [values[f"training/off_policy/lag_{lag}/{name}"] for lag in (0, 3)]
        assert all(0 < share < 1 for share in shares)
        mean = np.average(shares, weights=[(lags_N == lag).sum() for lag in (0, 3)])
        lower = values["clip_frac_lower"] if name == "clipped_frac" else 0.0
        assert mean == pytest.approx(values[whole] + lower)


def test_a_token_that_is_not_finite_is_left_out_and_its_group_is_named(model_dir, groups, caplog):
    policy = make_policy(model_dir, algorithm_max_nonfinite_frac=0.5)
    batch = make_batch(policy, groups)
    of_group_2 = next(int(batch.starts_R[r]) for r in range(len(batch.rows)) if r // 4 == 2)
    sampler_N = batch.sampler_N.copy()
    sampler_N[of_group_2] = np.nan
    values = renamed(train(policy, replace(batch, sampler_N=sampler_N)).values())
    assert values["actor/nonfinite_tokens"] == pytest.approx(1 / batch.num_trained)
    assert "1 tokens are left out, their loss is NaN or infinite: of group 2.1" in caplog.text
    assert policy.optimizer_steps == 1


def test_a_gradient_that_stays_infinite_is_skipped_and_then_stops_the_run(model_dir, groups):
    policy = make_policy(model_dir)
    handle = policy.named_parameters()["model.norm.weight"].register_hook(lambda grad: grad * float("inf"))
    before = weights(policy)
    for _ in range(2):
        metrics = train(policy, make_batch(policy, groups)).values()
        assert metrics["actor/skipped_updates"] == 1.0
    with pytest.raises(NumericsError, match="3 optimizer steps in a row"):
        train(policy, make_batch(policy, groups))
    assert largest_difference(before, weights(policy)) == 0.0
    handle.remove()
    train(policy, make_batch(policy, groups))
    assert policy.optimizer_steps == 1


def test_bfloat16_arithmetic_stays_near_float32_and_masters_stay_float32(model_dir, groups):
    policy = make_policy(model_dir)
    policy.model = load_language_model(model_dir, arithmetic="bfloat16", device=CPU, meshes=None)
    batch = make_batch(policy, groups)
    low, full = policy.logprobs(batch), make_policy(model_dir).logprobs(batch)
    assert 0 < float((low - full).abs().max()) < 0.2
    assert {p.dtype for p in policy.model.module.parameters()} == {torch.float32}


def test_recomputing_activations_changes_no_gradient(model_dir, groups):
    plain, _ = after_one_step(model_dir, groups)
    recomputed, _ = after_one_step(model_dir, groups, gradient_checkpointing=True)
    assert largest_difference(plain, recomputed) < 1e-6


def test_shards_are_the_weights_in_the_wire_dtype_tied_ones_once(model_dir):
    policy = make_policy(model_dir)
    shards = {shard.name: shard for shard in policy.shards()}
    assert "lm_head.weight" not in shards
    assert {shard.wire for shard in shards.values()} == {torch.bfloat16}
    parameter = policy.named_parameters()["model.embed_tokens.weight"]
    assert torch.equal(shards["model.embed_tokens.weight"].tensor, parameter.to(torch.bfloat16))


def test_metrics_carry_the_names_of_verl(model_dir, groups):
    _, metrics = after_one_step(model_dir, groups)
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "actor/lr", "rollout_corr/rollout_is_mean"):
        assert np.isfinite(metrics[name]), name
    assert metrics["training/off_policy/lag_0/ess"] > 0


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        make_policy(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a causal language model"):
        make_policy(tmp_path)


def test_a_long_trajectory_with_observations_trains_like_its_parts(model_dir):
    # Neighbours and holes in the mask must not leak: the same answer alone and in a batch has the same logprob.
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 50, 20).astype(np.uint32)
    mask = np.zeros(20, dtype=bool)
    mask[[4, 5, 11, 19]] = True
    long_row = Row(ids, mask, np.where(mask, -1.0, 0.0).astype(np.float32), one_span(4), 3)
    short = Row(ids[:6], mask[:6], np.where(mask[:6], -1.0, 0.0).astype(np.float32), one_span(2), 3)
    members = tuple(Trajectory(rows=(row,), reward=float(i)) for i, row in enumerate((long_row, short)))
    policy = make_policy(model_dir)
    logprobs = policy.logprobs(make_batch(policy, [Group(0, 1, "toy", members)]))
    assert logprobs[:2].tolist() == pytest.approx(logprobs[4:].tolist(), abs=1e-6)


def one_span(num_tokens):
    from buffer import Span

    return (Span(1 << 32, 0, num_tokens),)
