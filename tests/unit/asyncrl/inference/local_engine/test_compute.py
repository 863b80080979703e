"""Compute copies follow the plain weights, and only what was touched is made again."""

import pytest
import torch
import torch.nn.functional as F

from asyncrl.inference.local_engine.compute import ComputeWeights, resolve_dtype
from asyncrl.inference.local_engine.weights import Weights
from tests.support.local_models import local_model, make_engine, make_model, make_request

WIDE = {"hidden_size": 160, "num_attention_heads": 5, "num_key_value_heads": 1}


def weights_of(dtype: torch.dtype = torch.float32, **overrides: object) -> Weights:
    return local_model(make_model("qwen2", **overrides), dtype).weights


@pytest.mark.parametrize(
    ("asked", "storage", "overrides", "expected"),
    [
        ("auto", torch.bfloat16, {}, torch.float32),
        ("auto", torch.bfloat16, WIDE, torch.bfloat16),
        ("auto", torch.float32, WIDE, torch.float32),
        ("float32", torch.bfloat16, WIDE, torch.float32),
        ("bfloat16", torch.float32, {}, torch.bfloat16),
    ],
)
def test_auto_computes_tiny_models_in_float32_and_others_as_stored(
    asked: str, storage: torch.dtype, overrides: dict[str, object], expected: torch.dtype
) -> None:
    assert resolve_dtype(asked, weights_of(storage, **overrides)) == expected


def test_tiny_float32_models_read_the_plain_weights_themselves_where_mkl_is_not_at_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncrl.inference.local_engine.compute._mkl_is_at_home", lambda: False)
    weights = weights_of()
    compute = ComputeWeights(weights, torch.float32)
    assert compute.kind == "plain"
    assert compute.layers[0].down.data_ptr() == weights.fused[weights.layers[0].down].data_ptr()


@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wider_models_have_the_layout_of_the_cpu_and_compute_the_same(
    dtype: torch.dtype, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.inference.local_engine.compute._mkl_is_at_home", lambda: intel)
    weights = weights_of(dtype, **WIDE)
    compute = ComputeWeights(weights, dtype)
    # oneDNN has no packed bfloat16 product for CPUs without AVX-512; what it falls back to computes the same.
    is_there = dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert compute.kind == ("transposed" if intel and dtype == torch.float32 else "packed" if is_there else "plain")
    rows = torch.randn(8, 160, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = compute.linear(rows, compute.layers[0].gate_up, None)
    expected = F.linear(rows.float(), weights.fused[weights.layers[0].gate_up].float())
    assert torch.allclose(got.float(), expected, rtol=2e-2, atol=2e-2)
    bias = torch.randn(len(expected[0]), generator=torch.Generator().manual_seed(1)).to(dtype)
    got = compute.linear(rows, compute.layers[0].gate_up, bias)
    assert torch.allclose(got.float(), expected + bias.float(), rtol=2e-2, atol=2e-2)


def test_a_packed_product_that_is_wrong_on_this_machine_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "asyncrl.inference.local_engine.products._packed_linear",
        lambda rows, weight, bias: rows.new_zeros(len(rows), 7),
    )
    monkeypatch.setattr(torch, "allclose", lambda *args, **kwargs: False)
    assert ComputeWeights(weights_of(**WIDE), torch.float32, kind="packed").kind == "plain"


def test_only_touched_parameters_are_made_again() -> None:
    weights = weights_of(**WIDE)
    compute = ComputeWeights(weights, torch.float32)
    kept, changed = compute.layers[0].o, compute.layers[0].qkv
    compute.touch([weights.layers[0].qkv])
    compute.refresh()
    assert compute.layers[0].o is kept
    assert compute.layers[0].qkv is not changed


@pytest.mark.parametrize("overrides", [{}, WIDE, {**WIDE, "tie_word_embeddings": False}])
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
def test_after_an_update_requests_equal_those_of_a_fresh_engine(
    overrides: dict[str, object], storage: torch.dtype
) -> None:
    old, new = make_model("qwen2", **overrides), make_model("qwen2", seed=5, **overrides)
    engine = make_engine(old, storage, torch.float32)
    engine.run([make_request(0, [1, 2, 3], 5)])
    engine.compute.touch(engine.model.load_weights(new.state_dict().items()))
    engine.flush()
    (updated,) = engine.run([make_request(0, [1, 2, 3], 20)])
    (fresh,) = make_engine(new, storage, torch.float32).run([make_request(0, [1, 2, 3], 20)])
    assert (updated.output, updated.logprobs) == (fresh.output, fresh.logprobs)


def test_released_copies_come_back_from_the_plain_weights() -> None:
    engine = make_engine(make_model("qwen2", **WIDE), torch.bfloat16)
    (before,) = engine.run([make_request(0, [1, 2, 3], 9)])
    engine.compute.release()
    engine.release_cache()
    assert engine.cache.num_bytes() == 0
    (after,) = engine.run([make_request(0, [1, 2, 3], 9)])
    assert (after.output, after.logprobs) == (before.output, before.logprobs)
