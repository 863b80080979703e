"""Logprobs and entropies made in pieces equal those of the plain formulas, forward and backward."""

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms import logprobs as module
from asyncrl.algorithms.logprobs import entropy, token_logprobs

NAN = float("nan")


@pytest.fixture(params=[1, 100, 1 << 24], ids=["row by row", "few rows", "at once"], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", request.param)


def random_logits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, 5, 33, generator=rng)
    return logits.to(dtype), torch.randint(0, 33, (3, 5), generator=rng)


def gradient(values: Tensor, leaf: Tensor, weights: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad((values * weights).sum(), leaf)
    return grad


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_values_and_gradients_equal_log_softmax(temperature: float) -> None:
    logits, labels = random_logits()
    weights = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    ours, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    got = token_logprobs(ours, labels, temperature=temperature)
    want = (plain / temperature).log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradient(got, ours, weights), gradient(want, plain, weights))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropies_and_their_gradients_equal_the_definition(temperature: float) -> None:
    logits, _ = random_logits()
    weights = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    ours, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    got = entropy(ours, temperature=temperature)
    log_softmax = (plain / temperature).log_softmax(-1)
    want = -(log_softmax.exp() * log_softmax).sum(-1)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradient(got, ours, weights), gradient(want, plain, weights))


def test_bfloat16_logits_are_normalised_in_float32_and_get_bfloat16_gradients() -> None:
    logits, labels = random_logits(torch.bfloat16)
    leaf = logits.clone().requires_grad_()
    got = token_logprobs(leaf, labels, temperature=0.8)
    torch.testing.assert_close(got, token_logprobs(logits.float(), labels, temperature=0.8), rtol=0, atol=0)
    grad = gradient(got, leaf, torch.ones(3, 5))
    assert got.dtype == torch.float32
    assert grad.dtype == torch.bfloat16


def test_a_position_that_is_masked_later_gets_gradient_zero_even_with_nan_logits() -> None:
    logits, labels = random_logits()
    logits[1, 2] = NAN
    weights = torch.ones(3, 5)
    weights[1, 2] = 0.0
    for function in (lambda z: token_logprobs(z, labels, temperature=1.0), entropy):
        leaf = logits.clone().requires_grad_()
        values = torch.where(weights > 0, function(leaf), 0.0)
        grad = gradient(values, leaf, torch.ones(3, 5))
        assert grad.isfinite().all()
        assert (grad[1, 2] == 0).all()


def test_a_token_that_cannot_be_drawn_adds_nothing_to_the_entropy() -> None:
    leaf = torch.tensor([[1.0, 1.0, -torch.inf]]).requires_grad_()
    value = entropy(leaf)
    torch.testing.assert_close(value, torch.tensor([2.0]).log())
    assert gradient(value, leaf, torch.ones(1)).isfinite().all()


def test_equal_weights_at_the_sampling_temperature_give_a_ratio_of_one() -> None:
    """Of every token, and not at another temperature (B083)."""
    logits, labels = torch.tensor([[2.0, 1.0, 0.0]] * 3), torch.tensor([0, 1, 2])
    sampler = (logits / 0.6).softmax(-1).gather(-1, labels[:, None]).squeeze(-1).log()
    ratio = (token_logprobs(logits, labels, temperature=0.6) - sampler).exp()
    torch.testing.assert_close(ratio, torch.ones(3), rtol=1e-5, atol=0.0)
    assert ((token_logprobs(logits, labels, temperature=1.0) - sampler).exp() - 1).abs().max() > 0.2


def test_labels_of_another_shape_and_a_temperature_of_zero_are_refused() -> None:
    logits, labels = random_logits()
    with pytest.raises(ValueError, match=r"need labels of shape \(3, 5\), got \(5, 3\)"):
        token_logprobs(logits, labels.T, temperature=1.0)
    with pytest.raises(ValueError, match=r"rollout\.temperature"):
        token_logprobs(logits, labels, temperature=0.0)
    with pytest.raises(ValueError, match=r"rollout\.temperature"):
        entropy(logits, temperature=-1.0)


def test_no_tokens_at_all_give_no_logprobs() -> None:
    leaf = torch.zeros(0, 33).requires_grad_()
    values = token_logprobs(leaf, torch.zeros(0, dtype=torch.int64), temperature=1.0)
    assert values.shape == (0,)
    assert gradient(values, leaf, values.detach()).shape == (0, 33)
