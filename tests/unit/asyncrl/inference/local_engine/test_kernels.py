"""Each kernel of a decode step against torch, and a step of all of them against the one without numba."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from asyncrl.inference.local_engine import fused, kernels
from asyncrl.inference.local_engine.forward import rms_norm
from asyncrl.inference.local_engine.sampling import UNIFORM_MAX, sample
from tests.support.local_models import make_engine, make_model, make_request, random_work

pytestmark = pytest.mark.skipif(not kernels.HAVE_NUMBA, reason="kernels are numba's")


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def close(mine: np.ndarray | torch.Tensor, theirs: torch.Tensor, tolerance: float = 2e-6) -> bool:
    return torch.allclose(torch.as_tensor(mine), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows_added", [0, 5])
def test_the_norm_of_a_sum_is_torchs(rows_added: int) -> None:
    x, added, weight, floor = random(5, 72), random(rows_added, 72, seed=1), random(72, seed=2), 0.3
    expected = x + added if rows_added else x.clone()
    out = np.empty((5, 72), np.float32)
    kernels.add_norm(x.numpy(), added.numpy(), weight.numpy(), np.float32(floor), out)
    assert torch.equal(x, expected)
    assert close(out, rms_norm(expected, weight, torch.tensor(floor)))


def test_the_gate_is_silu_at_any_size_and_passes_what_is_no_number_on() -> None:
    gate_up = random(3, 2 * 77, scale=20.0)
    gate_up[1, :5] = torch.tensor([-1e30, -200.0, 200.0, 1e30, math.nan])
    out = np.empty((3, 77), np.float32)
    kernels.gate(gate_up.numpy(), out)
    expected = F.silu(gate_up[:, :77]) * gate_up[:, 77:]
    assert close(out[[0, 2]], expected[[0, 2]])
    assert close(out[1, [1, 2]], expected[1, [1, 2]])
    assert np.isnan(out[1, 4])


@pytest.mark.parametrize("vocab", [1, 3, 51, 64, 65, 512, 1000])
def test_a_draw_is_that_of_torch_without_filters(vocab: int) -> None:
    logits = random(64, vocab, seed=vocab, scale=3.0)
    inverse = torch.linspace(0.5, 3.0, 64)
    uniform = torch.rand(64, generator=torch.Generator().manual_seed(1)).clamp(max=UNIFORM_MAX)
    uniform[:2] = torch.tensor([0.0, UNIFORM_MAX])
    greedy = torch.arange(64) % 4 == 3
    expected = sample(logits.clone(), inverse, uniform, greedy=greedy, filters=None)
    tokens, logprobs = np.empty(64, np.int64), np.empty(64, np.float32)
    kernels.draw(logits.clone().numpy(), inverse.numpy(), greedy.numpy(), uniform.numpy(), tokens, logprobs)
    running = torch.softmax((logits * inverse.unsqueeze(1)).double(), -1).cumsum(-1)
    for row, (mine, theirs) in enumerate(zip(tokens.tolist(), expected[0].tolist(), strict=True)):
        # Where a rounding decides, the neighbour is as right: its running sum is the uniform to seven digits.
        assert mine == theirs or (not greedy[row] and abs(running[row, min(mine, theirs)] - uniform[row]) < 1e-6)
        assert logprobs[row] == pytest.approx(float(torch.log_softmax(logits[row] * inverse[row], -1)[mine]), abs=2e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.5, UNIFORM_MAX])
def test_a_token_without_weight_is_never_drawn_and_a_row_of_nan_is_seen(uniform: float) -> None:
    logits = random(8, 200, scale=3.0)
    logits[:, 100:] = -math.inf
    logits[:, 0] = -math.inf
    logits[5, 50] = math.nan
    tokens, logprobs = np.empty(8, np.int64), np.empty(8, np.float32)
    ones, none = np.ones(8, np.float32), np.zeros(8, np.bool_)
    kernels.draw(logits.numpy(), ones, none, np.full(8, uniform, np.float32), tokens, logprobs)
    assert [math.isnan(one) for one in logprobs] == [row == 5 for row in range(8)]
    assert all(0 < token < 100 for row, token in enumerate(tokens) if row != 5)
    assert 0 <= tokens[5] < 200


MODELS = {
    "grouped heads": ("qwen2", {}),
    "norms of heads": ("qwen3", {"head_dim": 32}),
    "one head for all, wide": ("llama", {"num_key_value_heads": 1, "head_dim": 128}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_the_one_without_numba_through_several_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, overrides = MODELS[name]
    model = make_model(family, **overrides)
    work = [*random_work(6, seed=2), ([7] * 200, 90)]

    def run() -> list[tuple[list[int], list[float]]]:
        requests = [make_request(number, *one) for number, one in enumerate(work)]
        return [(request.output, request.logprobs) for request in make_engine(model).run(requests)]

    with_kernels = run()
    monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    for mine, theirs in zip(with_kernels, run(), strict=True):
        assert mine[0] == theirs[0]
        assert mine[1] == pytest.approx(theirs[1], abs=1e-5)


def test_kernels_are_for_float32_and_for_sizes_that_they_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def possible(dtype: torch.dtype = torch.float32, **overrides: object) -> bool:
        engine = make_engine(make_model("llama", **overrides), dtype)
        assert len(engine.run([make_request(0, [1, 2, 3], 5)])[0].output) == 5
        assert engine.forward.decodes_with == ("numba" if fused.is_possible(engine.compute) else "torch")
        return fused.is_possible(engine.compute)

    assert possible()
    assert not possible(torch.bfloat16)
    assert not possible(head_dim=12)
    monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    assert not possible()


def test_what_is_compiled_beforehand_is_what_runs() -> None:
    fused.compile_kernels()
    compiled = (kernels.add_norm, kernels.attend, kernels.draw, kernels.gate)
    before = [len(kernel.signatures) for kernel in compiled]
    make_engine(make_model("qwen3")).run([make_request(0, [1, 2, 3], 5, temperature=0.0), make_request(1, [4], 150)])
    assert [len(kernel.signatures) for kernel in compiled] == before


def test_released_copies_of_weights_are_not_held_by_the_step() -> None:
    engine = make_engine(make_model("qwen2", hidden_size=160, num_attention_heads=5, num_key_value_heads=1))
    engine.run([make_request(0, [1, 2, 3], 5)])
    held = weakref.ref(engine.compute.layers[0].gate_up)
    engine.compute.release()
    gc.collect()
    assert held() is None
