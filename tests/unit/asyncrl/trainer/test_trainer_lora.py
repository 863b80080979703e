"""An adapter in place of all weights: what is trained, what the reference is, what servers get, what is refused."""

import builtins
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.config import Config, InferenceConfig, LoraConfig
from asyncrl.doctor.software import check_versions
from asyncrl.errors import ConfigError
from asyncrl.trainer.metric_names import renamed
from tests.support.plain_logprobs import plain_logprobs
from tests.support.tiny_policy import VOCABULARY, make_batch, make_groups, make_policy, train
from weightsync.buckets import BucketPlan
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.shard import ShardWords

RANK, ALPHA = 4, 6.0
make_adapted = partial(make_policy, lora_rank=RANK, lora_alpha=ALPHA)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def groups(model_dir):
    return make_groups(model_dir, 4, 4, seed=1)


@pytest.fixture(scope="module")
def trained(model_dir, groups):
    """A policy after two steps."""
    policy = make_adapted(model_dir, algorithm_kl_coef=0.1)
    for _ in range(2):
        train(policy, make_batch(policy, groups))
    return policy


def everything(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.model.module.named_parameters()}


def words_of(policy, model_dir):
    """What servers would be sent of each tensor, as it is stored."""
    manifest = Manifest.from_model_dir(model_dir, "bfloat16")
    plan, words = BucketPlan.whole(manifest, 1 << 20), ShardWords(policy.shards())
    found = {}
    for bucket in plan.buckets:
        flat, at = words.of(bucket), 0
        for segment in bucket.segments:
            found[segment.tensor] = flat[at : at + segment.words].copy()
            at += segment.words
    return found


def test_the_adapter_alone_is_trained_and_nothing_else_moves(model_dir, groups):
    policy = make_adapted(model_dir)
    before = everything(policy)
    train(policy, make_batch(policy, groups))
    moved = {name for name, value in everything(policy).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_B" in name}  # A has no gradient while B is zero
    train(policy, make_batch(policy, groups))
    moved = {name for name, value in everything(policy).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    names = policy.named_parameters()
    assert len(names) == 2 * len(LINEAR) * 2
    assert names["model.layers.1.mlp.up_proj.lora_A.weight"].shape == (RANK, 16)
    assert names["model.layers.1.mlp.up_proj.lora_B.weight"].shape == (48, RANK)
    held = policy.optimizer.adamw.state
    assert sum(state["exp_avg"].numel() for state in held.values()) == sum(p.numel() for p in names.values())


def test_at_the_start_policy_and_reference_are_the_model_bit_for_bit(model_dir, groups):
    policy, plain = make_adapted(model_dir, algorithm_kl_coef=0.1), make_policy(model_dir)
    batch = make_batch(policy, groups)
    expected = plain.logprobs(batch)
    assert torch.equal(policy.logprobs(batch), expected)
    assert torch.equal(policy.reference_logprobs(batch), expected)
    metrics = renamed(train(policy, batch).values())
    assert metrics["actor/kl_loss"] == 0.0


def test_the_reference_stays_the_model_and_is_no_second_one(model_dir, groups, trained):
    batch = make_batch(trained, groups)
    expected = make_policy(model_dir).logprobs(batch)
    assert torch.equal(trained.reference_logprobs(batch), expected)
    assert not torch.equal(trained.logprobs(batch), expected)
    assert trained._reference is trained.model
    assert all(parameter.requires_grad for parameter in trained.parameters())


def test_an_error_within_the_reference_turns_the_adapter_on_again(groups, model_dir):
    policy = make_adapted(model_dir, algorithm_kl_coef=0.1)
    train(policy, make_batch(policy, groups))
    batch = make_batch(policy, groups)
    own = policy.logprobs(batch)
    broken = replace(batch, labels_N=np.full_like(batch.labels_N, 10**6))
    with pytest.raises((IndexError, RuntimeError)):
        policy.reference_logprobs(broken)
    assert torch.equal(policy.logprobs(batch), own)


def test_servers_get_the_weights_with_the_adapter_added(model_dir, groups, trained):
    """The words are those of W + alpha / rank x B A; a model made of them says what the policy says."""
    words, stored = words_of(trained, model_dir), ModelDir(model_dir)
    named, scale = trained.named_parameters(), ALPHA / RANK
    served = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    for name, value in served.named_parameters():
        layer = name.removesuffix(".weight")
        expected = value.detach()
        if f"{layer}.lora_A.weight" in named:
            up, down = (named[f"{layer}.lora_{part}.weight"].detach() for part in "BA")
            expected = expected + scale * (up @ down)
            assert (words[name] != stored.words(name)).any(), name
        else:
            assert np.array_equal(words[name], stored.words(name)), name
        sent = torch.from_numpy(words[name].view(np.int16)).view(torch.bfloat16).reshape(value.shape)
        torch.testing.assert_close(sent.float(), expected, atol=1e-6, rtol=2**-8, msg=name)
        with torch.no_grad():
            value.copy_(expected)
    batch = make_batch(trained, groups)
    picked = plain_logprobs(served, batch.rows[0])
    torch.testing.assert_close(trained.logprobs(batch)[: len(picked)], picked, atol=1e-5, rtol=1e-4)


def test_what_is_frozen_is_marked_so_and_an_adapter_of_nothing_changes_no_word(model_dir):
    policy, stored = make_adapted(model_dir, lora_target_modules=("q_proj", "mlp.up_proj")), ModelDir(model_dir)
    for shard in policy.shards():
        assert shard.frozen == (not shard.name.endswith(("q_proj.weight", "up_proj.weight"))), shard.name
    words = words_of(policy, model_dir)
    assert all(np.array_equal(words[name], stored.words(name)) for name in words)


def test_bfloat16_arithmetic_holds_frozen_weights_as_they_are_stored(model_dir, groups):
    policy = make_adapted(model_dir, arithmetic="bfloat16", algorithm_kl_coef=0.1)
    dtypes = {name: parameter.dtype for name, parameter in policy.model.module.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if "lora_" not in name} == {torch.bfloat16}
    assert {dtype for name, dtype in dtypes.items() if "lora_" in name} == {torch.float32}
    stored, words = ModelDir(model_dir), words_of(policy, model_dir)
    assert all(np.array_equal(words[name], stored.words(name)) for name in words)
    metrics = renamed(train(policy, make_batch(policy, groups)).values())
    assert metrics["actor/kl_loss"] == 0.0
    full = make_policy(model_dir, arithmetic="bfloat16")
    batch = make_batch(full, groups)
    start = make_adapted(model_dir, arithmetic="bfloat16").logprobs(batch)
    torch.testing.assert_close(start, full.logprobs(batch), atol=0.2, rtol=0)


@pytest.fixture(scope="module")
def experts_dir(tmp_path_factory):
    """A Qwen3 with experts, which transformers holds as stacks and directories as matrices, in bfloat16 words."""
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            moe_intermediate_size=8,
            num_experts=4,
            num_experts_per_tok=2,
        )
    )
    model.to(torch.bfloat16).save_pretrained(directory := tmp_path_factory.mktemp("experts"))
    return directory


def test_experts_stay_frozen_as_they_are_stored_beside_adapters_of_the_rest(experts_dir):
    manifest = Manifest.from_model_dir(experts_dir, "bfloat16")
    policy = make_adapted(experts_dir, arithmetic="bfloat16")
    stacks = [p for name, p in policy.model.module.named_parameters() if "experts" in name]
    assert {(stack.dtype, stack.requires_grad) for stack in stacks} == {(torch.bfloat16, False)}
    train(policy, make_batch(policy, make_groups(experts_dir, 2, 3)))
    words, stored = words_of(policy, experts_dir), ModelDir(experts_dir)
    assert words.keys() == manifest.by_name.keys()
    changed = {name for name in words if (words[name] != stored.words(name)).any()}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_recomputing_activations_changes_no_gradient(model_dir, groups):
    found = []
    for recompute in (False, True):
        policy = make_adapted(model_dir, gradient_checkpointing=recompute)
        for _ in range(2):
            metrics = renamed(train(policy, make_batch(policy, groups)).values())
        found.append((metrics["actor/grad_norm"], policy.named_parameters()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, value in found[0][1].items():
        torch.testing.assert_close(value, found[1][1][name], atol=1e-5, rtol=1e-4, msg=name)


def test_the_seed_says_how_it_begins(model_dir):
    one, same, other = (make_adapted(model_dir, lora_seed=seed) for seed in (3, 3, 4))
    name = "model.layers.0.mlp.up_proj.lora_A.weight"
    torch.manual_seed(99)  # of no concern
    values = [policy.named_parameters()[name] for policy in (one, same, other)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("nope",), "names nope, which no layer"),
        (("q_proj", "nope"), "names nope, which no layer"),
        (("input_layernorm",), "input_layernorm, a LlamaRMSNorm"),
        (("embed_tokens",), "embed_tokens, a Embedding"),
        (("lm_head",), "lm_head, the head"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_refused_by_name(model_dir, targets, words):
    with pytest.raises(ConfigError, match=words):
        make_adapted(model_dir, lora_target_modules=targets)


def test_without_peft_it_is_said_what_to_install(model_dir, monkeypatch):
    plain_import = builtins.__import__

    def without_peft(name, *rest, **more):
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return plain_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[lora\]'"):
        make_adapted(model_dir)
    make_policy(model_dir)  # needs none


def test_dropout_and_no_layers_at_all_are_refused():
    with pytest.raises(ValidationError, match="servers sample from the adapter without dropout"):
        LoraConfig(rank=4, dropout=0.1)
    with pytest.raises(ValidationError, match="nothing would be trained"):
        LoraConfig(rank=4, target_modules=())


def test_what_no_engine_can_hold_is_refused_before_anything_starts():
    lora = LoraConfig(rank=4, sync="adapter")
    with pytest.raises(ValidationError, match=r"lora\.sync = adapter with inference\.engine = sglang"):
        Config(lora=lora, inference=InferenceConfig(engine="sglang"))
    Config(lora=LoraConfig(rank=0, sync="adapter"), inference=InferenceConfig(engine="sglang"))


def test_the_doctor_asks_for_peft_where_it_is_needed():
    names = [[finding.name for finding in check_versions(Config(lora=LoraConfig(rank=rank)))] for rank in (0, 4)]
    assert "adapter libraries" not in names[0]
    assert "adapter libraries" in names[1]
