"""The engine's logprobs are the model's: compared with transformers' own forward pass."""

import pytest
import torch

from asyncrl.inference.local_engine import kernels
from asyncrl.inference.local_engine.request import Request
from tests.support.local_models import VOCAB, make_engine, make_model, make_request, random_work, reference_logprobs

MODELS = {
    "llama": ("llama", {}),
    "llama with biases, untied": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "llama without grouped heads": ("llama", {"num_key_value_heads": 4, "rope_theta": 5e5}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3 untied, heads wider than hidden": (
        "qwen3",
        {"tie_word_embeddings": False, "head_dim": 32, "attention_bias": True, "rope_theta": 1e6},
    ),
    "qwen2 packed": ("qwen2", {"hidden_size": 160, "intermediate_size": 320, "num_attention_heads": 5,
                               "num_key_value_heads": 5}),
}  # fmt: skip


def largest_difference(model: torch.nn.Module, requests: list[Request], temperature: float) -> float:
    return max(
        abs(mine - theirs)
        for request in requests
        for mine, theirs in zip(request.logprobs, reference_logprobs(model, request, temperature), strict=True)
    )


def with_rounded_weights(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():  # parameters only: Module.to would round the rotary frequencies as well
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_logprobs_of_sampled_tokens_equal_those_of_transformers(
    name: str, numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not numba:
        monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    family, overrides = MODELS[name]
    model = make_model(family, **overrides)
    engine = make_engine(model)
    requests = engine.run(
        [make_request(i, prompt, length) for i, (prompt, length) in enumerate(random_work(12, seed=1))]
    )
    assert largest_difference(model, requests, 0.8) <= 1e-5


def test_a_greedy_request_takes_the_largest_logit_and_reports_logprobs_at_temperature_1() -> None:
    model = make_model("qwen2")
    (request,) = make_engine(model).run([make_request(0, [3, 1, 4], 20, temperature=0.0)])
    ids = torch.tensor([request.prompt + request.output])
    with torch.no_grad():
        best = model(ids).logits[0, 2:-1].argmax(-1).tolist()
    assert request.output == best
    assert largest_difference(model, [request], 1.0) <= 1e-5


def test_greedy_and_sampled_requests_share_a_batch() -> None:
    model = make_model("qwen3")
    alone = make_engine(model).run([make_request(1, [5, 6], 12, temperature=0.0)])[0]
    mixed = make_engine(model).run(
        [make_request(0, [9], 30), make_request(1, [5, 6], 12, temperature=0.0), make_request(2, [7], 9)]
    )
    assert (mixed[1].output, mixed[1].logprobs) == (alone.output, alone.logprobs)
    assert largest_difference(model, [mixed[0], mixed[2]], 0.8) <= 1e-5


def test_bfloat16_storage_with_float32_compute_equals_the_model_with_rounded_weights() -> None:
    model = make_model("llama")
    engine = make_engine(model, torch.bfloat16, torch.float32)
    requests = engine.run([make_request(i, prompt, 20) for i, (prompt, _) in enumerate(random_work(6))])
    assert largest_difference(with_rounded_weights(model), requests, 0.8) <= 1e-5


def test_bfloat16_compute_is_within_the_noise_of_the_type() -> None:
    model = make_model("qwen2", hidden_size=160, num_attention_heads=5, num_key_value_heads=5)
    engine = make_engine(model, torch.bfloat16)
    requests = engine.run([make_request(i, prompt, 20) for i, (prompt, _) in enumerate(random_work(6))])
    assert largest_difference(with_rounded_weights(model), requests, 0.8) <= 0.3


@pytest.mark.parametrize("start", [0, 7, 298, 299])
def test_prompt_logprobs_are_at_temperature_1_and_the_first_is_none(start: int) -> None:
    model = make_model("qwen2")
    prompt = [(7 * i + i // 3) % VOCAB for i in range(300)]
    (request,) = make_engine(model).run([make_request(0, prompt, 4, temperature=0.5, logprob_start=start)])
    with torch.no_grad():
        reference = torch.log_softmax(model(torch.tensor([prompt])).logits[0].float(), -1)
    expected = [None, *(float(reference[i - 1, prompt[i]]) for i in range(start + 1, 300))]
    assert len(request.prompt_logprobs) == 300 - start
    assert request.prompt_logprobs[0] is None
    assert request.prompt_logprobs[1:] == pytest.approx(expected[1:], abs=1e-5)


def test_a_request_for_no_tokens_scores_its_prompt_and_ends_with_length() -> None:
    (request,) = make_engine(make_model("qwen2")).run([make_request(0, [1, 2, 3], 0, logprob_start=0)])
    assert (request.output, request.logprobs) == ([], [])
    assert len(request.prompt_logprobs) == 3
    assert request.finish == {"type": "length", "length": 0}
