"""Operations of the optimizer's passes: by hand, against torch's own counter, and as a share of a device's peak."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3MoeConfig

from asyncrl.trainer.flops import ModelFlops, utilisation
from asyncrl.trainer.peaks import BFLOAT16_TFLOPS, known_peak, peak_flops

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 32,
}


def model_of(config, **extra):
    return AutoModelForCausalLM.from_config(
        config(**{**SIZES, **extra}), attn_implementation="eager", experts_implementation="eager"
    )


def test_a_dense_model_by_hand():
    """Layer: q 8x8, k and v 8x4, o 8x8, three of 8x16: 576 weights. Attention: 2 heads, keys and values of 4."""
    flops = ModelFlops.of(model_of(LlamaConfig))
    assert (flops.trained, flops.frozen) == (2 * 2 * 576, 0)
    assert (flops.head, flops.head_is_trained) == (2 * 8 * 32, True)
    assert (flops.windows, flops.pair) == ((None, None), 2 * 2 * (4 + 4))
    # Rows of 3 and 1 tokens have 6 + 1 pairs; logits are made for 2 tokens.
    assert flops.layers([3, 1]) == 4 * 2304 + 2 * 32 * 7
    assert flops.training([3, 1], 2) == 3 * (4 * 2304 + 2 * 32 * 7 + 2 * 512)


def counted(model, length, *, backward):
    counter = FlopCounterMode(display=False)
    with counter:
        logits = model(input_ids=torch.arange(length)[None] % SIZES["vocab_size"]).logits
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


def causal_surplus(flops, length):
    """What torch counts of pairs that the mask takes out: it sees the whole square."""
    return flops.pair * len(flops.windows) * (length * length - length * (length + 1) // 2)


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (LlamaConfig, {"tie_word_embeddings": False}),
        (LlamaConfig, {"tie_word_embeddings": True, "head_dim": 6}),
        (Qwen3MoeConfig, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "head_dim": 4}),
    ],
)
def test_forward_and_backward_are_what_torch_counts(config, extra):
    model, length = model_of(config, **extra), 7
    flops = ModelFlops.of(model)
    surplus = causal_surplus(flops, length)
    assert counted(model, length, backward=False) == flops.layers([length]) + length * flops.head + surplus
    assert counted(model, length, backward=True) == flops.training([length], length) + 3 * surplus


def test_frozen_weights_have_no_product_for_themselves_in_the_backward_pass():
    model, length = model_of(LlamaConfig, tie_word_embeddings=False), 5
    model.requires_grad_(False)
    model.get_input_embeddings().requires_grad_(True)  # so that gradients go through all layers
    flops = ModelFlops.of(model)
    assert (flops.trained, flops.head_is_trained) == (0, False)
    assert counted(model, length, backward=True) == flops.training([length], length) + 3 * causal_surplus(flops, length)


def test_a_window_bounds_the_pairs():
    """With 3 tokens to look at, itself included, a row of 5 has 1 + 2 + 3 + 3 + 3 pairs in each layer."""
    flops = ModelFlops.of(model_of(MistralConfig, sliding_window=3))
    assert flops.windows == (3, 3)
    assert flops.layers([5]) - 5 * flops.trained == 2 * flops.pair * 12
    assert flops.layers([2]) - 2 * flops.trained == 2 * flops.pair * 3


def test_the_share_of_the_peak_is_of_all_devices_and_recomputation_is_no_use():
    values = utilisation(4e12, 1e12, 2.0, 2, 10e12)
    assert values == {"perf/tflops/actor": 1.0, "perf/mfu/actor": 0.1, "perf/hfu/actor": 0.125}
    assert utilisation(4e12, 1e12, 2.0, 2, None) == {"perf/tflops/actor": 1.0}
    assert utilisation(0.0, 0.0, 2.0, 2, 10e12) == {}, "a step that trained nothing"


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.4),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("AMD Instinct MI300X", 1307.4),
    ],
)
def test_a_device_is_known_by_the_longest_name_that_fits(name, tflops):
    assert known_peak(name) == tflops * 1e12


def test_no_name_in_the_table_is_hidden_by_a_shorter_one_before_it():
    names = [name for name, _ in BFLOAT16_TFLOPS]
    assert [b for i, b in enumerate(names) if any(b.startswith(a) for a in names[:i])] == []


def test_without_a_known_device_there_is_a_peak_only_if_the_key_says_one():
    cpu = torch.device("cpu")
    assert peak_flops(cpu, "bfloat16", None) is None
    assert peak_flops(cpu, "float32", 0.5) == 0.5e12
    assert known_peak("NVIDIA H200 MIG 1g.18gb") is None
    assert known_peak("NVIDIA GeForce RTX 3060") is None


def test_a_step_counts_the_rows_that_are_trained_as_often_as_they_are_passed():
    from asyncrl.trainer.flops import FLOPS, RECOMPUTED, count_flops
    from asyncrl.trainer.tally import Tally

    model = model_of(LlamaConfig)
    flops, rows = ModelFlops.of(model), [SimpleNamespace(token_ids=range(n)) for n in (3, 9, 5)]
    parts = [torch.tensor([2]).numpy(), torch.tensor([0]).numpy()]
    batch = SimpleNamespace(rows=rows, rows_by_mini_batch=parts, num_trained=4)
    for recomputes in (False, True):
        tally = Tally()
        count_flops(flops, batch, tally, SimpleNamespace(ppo_epochs=2, gradient_checkpointing=recomputes))
        assert tally.values()[FLOPS] == 2 * flops.training([5, 3], 4)
        assert tally.values()[RECOMPUTED] == (2 * flops.layers([5, 3]) if recomputes else 0.0)
