"""Experts that a server recorded lead the trainer's routers, whose own gates and gradients stay."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM

from asyncrl.errors import ConfigError, DataError
from asyncrl.trainer.routing import COLUMN, Routing, routers
from tests.support.tiny_moe import NUM_EXPERTS, TOP_K, with_experts, write_tiny_moe
from tests.support.tiny_policy import make_batch, make_groups, make_policy, train


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_moe(tmp_path_factory.mktemp("moe") / "model")


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 3, 2)


def choices(policy):
    """A list that gets (router's input, gates, experts) of each layer with experts as it is run."""
    seen = []
    for _, router in routers(policy.model.module):
        router.register_forward_hook(lambda _, args, out: seen.append((args[0].detach(), *(o.detach() for o in out))))
    return seen


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("num_layers", [2, 3])
def test_tokens_go_where_the_server_sent_them_and_gates_are_the_routers_own(model_dir, groups, packing, num_layers):
    routed = with_experts(groups, num_layers)
    policy = make_policy(model_dir, packing=packing)
    batch = make_batch(policy, routed)
    seen = choices(policy)
    policy.logprobs(batch)
    (micro,) = policy._passes.micro_batches(batch, batch.rows_by_mini_batch[0])
    assert len(seen) == 2
    for layer, (_, logits, gates, experts) in enumerate(seen):
        column = layer if num_layers == 2 else layer + 1  # the dense layer comes first
        for row, start, length in zip(micro.inputs.rows_R, micro.inputs.starts_R, micro.inputs.lengths_R, strict=True):
            read = slice(start, start + length)
            assert torch.equal(experts[read], torch.from_numpy(batch.rows[row].columns[COLUMN][:length, column]).long())
        probs = logits.softmax(-1).gather(-1, experts)
        torch.testing.assert_close(gates, probs / probs.sum(-1, keepdim=True))


def test_the_trained_loss_and_the_routers_gradient_follow_the_record(model_dir, groups):
    def after(policy, batch):
        tally = train(policy, batch).values()
        weights = {name: router.weight.detach().clone() for name, router in routers(policy.model.module)}
        return tally, weights

    plain = after(*(policy := make_policy(model_dir, share_prompts=False), make_batch(policy, groups)))
    led = after(*(policy := make_policy(model_dir), make_batch(policy, with_experts(groups, 2))))
    off = after(*(policy := make_policy(model_dir, replay_experts=False), make_batch(policy, with_experts(groups, 2))))
    assert plain[0] == off[0]
    assert led[0]["actor/grad_norm"] != pytest.approx(plain[0]["actor/grad_norm"], rel=1e-3)
    before = {name: router.weight for name, router in routers(AutoModelForCausalLM.from_pretrained(model_dir))}
    for name, weight in led[1].items():
        assert not torch.equal(weight, before[name].float()), name


def test_recording_the_choices_of_the_trainer_itself_changes_nothing(model_dir, groups):
    policy = make_policy(model_dir, packing=False)
    batch = make_batch(policy, groups)
    seen = choices(policy)
    expected = policy.logprobs(batch)
    (micro,) = policy._passes.micro_batches(batch, batch.rows_by_mini_batch[0])
    columns = {}
    for row, start, length in zip(micro.inputs.rows_R, micro.inputs.starts_R, micro.inputs.lengths_R, strict=True):
        # -1 where nothing was read: the last token, which is predicted only.
        columns[row] = np.full((len(batch.rows[row].token_ids), 2, TOP_K), -1, dtype=np.int16)
        columns[row][:length] = torch.stack([layer[3][start : start + length] for layer in seen], dim=1).numpy()
    # The rows of the batch in their order are the only one of each trajectory.
    numbers = iter(range(len(batch.rows)))
    own = [
        replace(
            group,
            trajectories=tuple(
                replace(t, rows=(replace(t.rows[0], columns={COLUMN: columns[next(numbers)]}),))
                for t in group.trajectories
            ),
        )
        for group in groups
    ]
    torch.testing.assert_close(policy.logprobs(make_batch(policy, own)), expected)


def test_rows_without_a_record_are_routed_as_ever(model_dir, groups):
    policy = make_policy(model_dir)
    mixed = [with_experts(groups[:1], 2)[0], *groups[1:]]
    expected = policy.logprobs(make_batch(policy, groups))
    found = policy.logprobs(batch := make_batch(policy, mixed))
    rows = sum(len(t.rows) for t in groups[0].trajectories)
    end = batch.starts_R[rows]
    assert not torch.allclose(found[:end], expected[:end], atol=1e-3)
    torch.testing.assert_close(found[end:], expected[end:])


def test_recomputed_activations_follow_the_record_too(model_dir, groups):
    norms = []
    for recompute in (False, True):
        policy = make_policy(model_dir, gradient_checkpointing=recompute)
        norms.append(train(policy, make_batch(policy, with_experts(groups, 2))).values()["actor/grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_routers_compute_in_float32_whatever_is_around_them(model_dir, groups):
    policy = make_policy(model_dir, arithmetic="bfloat16")
    seen = choices(policy)
    policy.logprobs(make_batch(policy, groups))
    assert [(logits.dtype, gates.dtype) for _, logits, gates, _ in seen] == [(torch.float32, torch.float32)] * 2
    # In the arithmetic around them they would have come out rounded.
    assert not torch.equal(seen[0][1], seen[0][1].bfloat16().float())


def test_experts_without_tokens_have_a_gradient_of_zero(model_dir, groups):
    policy = make_policy(model_dir, algorithm_kl_coef=0.0)
    first = with_experts(groups, 2)
    for group in first:
        for trajectory in group.trajectories:
            trajectory.rows[0].columns[COLUMN][...] = np.arange(TOP_K)  # always the same two experts
    grads = {}
    for name, parameter in policy.named_parameters().items():
        if "experts" in name:
            parameter.register_hook(lambda grad, name=name: grads.__setitem__(name, grad.clone()))
    train(policy, make_batch(policy, first))
    assert len(grads) == 4
    for grad in grads.values():
        assert grad[:TOP_K].abs().sum() > 0
        assert not grad[TOP_K:NUM_EXPERTS].any()


def test_a_record_of_another_model_is_refused(model_dir, groups):
    policy = make_policy(model_dir)
    with pytest.raises(DataError, match=r"routed_experts is of 5 layers, the model has 2 with experts and 3 in all"):
        policy.logprobs(make_batch(policy, with_experts(groups, 5)))
    mixed = [with_experts(groups[:1], 2)[0], *with_experts(groups[1:], 3)]
    with pytest.raises(DataError, match=r"with the layers and K of the others"):
        policy.logprobs(make_batch(policy, mixed))
    floats = with_experts(groups, 2, dtype="float32")
    with pytest.raises(DataError, match=r"routed_experts is float32 .* must be integers"):
        policy.logprobs(make_batch(policy, floats))


def test_a_router_that_chooses_among_groups_first_is_led_at_its_last_choice():
    torch.manual_seed(0)
    model = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=16,
            hidden_size=16,
            intermediate_size=8,
            moe_intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            first_k_dense_replace=1,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
            qk_nope_head_dim=4,
        )
    )
    routing, chosen = Routing(model), torch.tensor([[5, 1, 0], [7, 2, 3]])
    routing.lead(chosen[:, None])
    ((name, router),) = routers(model)
    seen = []
    router.register_forward_hook(lambda _, args, out: seen.append(out))
    model(input_ids=torch.tensor([[1, 2]]), use_cache=False)
    assert name.endswith("layers.1.mlp.gate")
    assert any(torch.equal(part, chosen) for part in seen[0] if part.shape == chosen.shape)


def test_a_router_that_does_not_choose_by_topk_is_refused(model_dir):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    for _, router in routers(model):
        plain = router.forward
        router.forward = lambda hidden, plain=plain: plain(hidden.sort()[0].repeat(2, 1))
    routing = Routing(model)
    routing.lead(torch.zeros(2, 2, TOP_K, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"mlp\.gate chose its experts 0 times by torch\.topk"):
        model(input_ids=torch.tensor([[1, 2]]), use_cache=False)
