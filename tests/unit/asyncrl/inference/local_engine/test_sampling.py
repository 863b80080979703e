"""Draws follow the distribution, exactly and reproducibly."""

import math

import numpy as np
import pytest
import torch

from asyncrl.inference.local_engine.sampling import UNIFORM_MAX, Filters, sample, token_logprobs, uniforms

WIDTHS = [1, 2, 51, 512, 4096, 4097, 49152, 151936]


def slow_draw(weights: np.ndarray, uniform: float) -> int:
    """The first token whose running sum, in double precision, passes uniform * sum."""
    running = weights.astype(np.float64).cumsum()
    return int(np.searchsorted(running, uniform * running[-1], side="right"))


def draw(logits: torch.Tensor, uniform: list[float], **kwargs: object) -> tuple[list[int], list[float]]:
    ones = torch.ones(len(logits))
    options = {"greedy": None, "filters": None, **kwargs}
    tokens, logprobs = sample(logits.clone(), ones, torch.tensor(uniform), **options)
    return tokens.tolist(), logprobs.tolist()


@pytest.mark.parametrize("vocab", WIDTHS)
def test_a_draw_equals_the_slow_inverse_of_the_distribution_function(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(64, vocab, generator=generator) * 2
    uniform = torch.rand(64, generator=generator).clamp(max=UNIFORM_MAX).tolist()
    tokens, logprobs = draw(logits, uniform)
    probabilities = torch.softmax(logits.double(), -1).numpy()
    for row, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        # Where a rounding decides, the neighbour is as right: its running sum is the uniform to seven digits.
        expected = slow_draw(probabilities[row], uniform[row])
        running = probabilities[row].cumsum()
        assert token == expected or abs(running[min(token, expected)] - uniform[row]) < 1e-5
        assert logprob == pytest.approx(math.log(probabilities[row, token]), abs=1e-5)


@pytest.mark.parametrize("vocab", [51, 4096, 4097, 8192 + 32])
@pytest.mark.parametrize("uniform", [0.0, 0.5, UNIFORM_MAX])
def test_a_token_of_probability_0_is_never_drawn(vocab: int, uniform: float) -> None:
    for seed in range(20):
        logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(seed)) * 3
        logits[:, vocab // 2 :] = -math.inf
        logits[:, 0] = -math.inf
        tokens, logprobs = draw(logits, [uniform] * 8)
        assert all(0 < token < vocab // 2 for token in tokens)
        assert all(math.isfinite(logprob) for logprob in logprobs)


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(20000, 1)
    tokens, _ = draw(logits, uniforms(3, 20000).tolist())
    counts = np.bincount(tokens, minlength=4) / 20000
    assert counts == pytest.approx(torch.softmax(logits[0], -1).numpy(), abs=0.01)


def slow_filter(probabilities: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Tokens that SGLang's rules leave, one at a time."""
    order = np.argsort(-probabilities, kind="stable")
    kept, before = set(), 0.0
    for rank, token in enumerate(order):
        if rank < top_k and before <= top_p and probabilities[token] >= min_p * probabilities[order[0]]:
            kept.add(int(token))
        before += probabilities[token]
    return kept


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(3, 1.0, 0.0), (40, 0.4, 0.0), (40, 1.0, 0.3), (5, 0.7, 0.05)])
def test_filters_leave_exactly_what_the_rules_leave_and_do_not_change_logprobs(
    top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(5)) * 2
    probabilities = torch.softmax(logits.double(), -1).numpy()
    filters = Filters(torch.full((2000,), top_k), torch.full((2000,), top_p), torch.full((2000,), min_p))
    tokens, logprobs = draw(logits.repeat(2000, 1), uniforms(1, 2000).tolist(), filters=filters)
    assert set(tokens) == slow_filter(probabilities, top_k, top_p, min_p)
    for token, logprob in zip(tokens, logprobs, strict=True):
        assert logprob == pytest.approx(math.log(probabilities[token]), abs=1e-5)


def test_a_token_of_a_nucleus_has_the_logprob_that_the_trainer_gives_it() -> None:
    """Probabilities 0.5, 0.3, 0.2 and top_p 0.8: ln 0.5 and not ln 0.625, or every ratio would be 0.8 (B084)."""
    probabilities = torch.tensor([[0.5, 0.3, 0.2]])
    filters = Filters(torch.tensor([3]), torch.tensor([0.79]), torch.tensor([0.0]))
    tokens, logprobs = draw(probabilities.log(), [0.6], filters=filters)
    assert tokens == [0], "0.6 of the mass that is kept"
    assert math.exp(math.log(0.5) - logprobs[0]) == pytest.approx(1.0, abs=1e-6)


def test_a_row_without_filters_is_drawn_the_same_beside_one_with_filters() -> None:
    logits = torch.randn(2, 51, generator=torch.Generator().manual_seed(2))
    filters = Filters(torch.tensor([51, 2]), torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.0]))
    plain, narrowed = draw(logits, [0.83, 0.83]), draw(logits, [0.83, 0.83], filters=filters)
    assert (plain[0][0], plain[1][0]) == (narrowed[0][0], narrowed[1][0])


def test_a_row_of_nan_gets_some_token_and_a_nan_logprob() -> None:
    for vocab in (51, 4097, 8192):
        logits = torch.zeros(8, vocab)
        logits[3] = math.nan
        tokens, logprobs = draw(logits, [0.4] * 8)
        assert [math.isnan(logprob) for logprob in logprobs] == [row == 3 for row in range(8)]
        assert all(0 <= token < vocab for token in tokens)


def test_a_uniform_depends_on_its_position_not_on_where_the_request_begins_or_ends() -> None:
    long = uniforms(12345678901234567890, 1000)
    assert np.array_equal(uniforms(12345678901234567890, 37), long[:37])
    assert np.array_equal(uniforms(12345678901234567890, 37, first=101), long[101:138])
    assert long.min() >= 0
    assert long.max() <= UNIFORM_MAX


def test_streams_differ_by_seed_and_requests_without_one_by_their_number() -> None:
    streams = [uniforms(seed, 8).tobytes() for seed in (0, 1, -1, (0, 0), (0, 1), (1, 0))]
    assert len(set(streams)) == len(streams)


def test_logprobs_of_given_tokens_are_those_of_the_softmax() -> None:
    logits = torch.randn(5, 51, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([0, 50, 7, 7, 3])
    expected = torch.softmax(logits, -1).gather(1, tokens.unsqueeze(1)).log().squeeze(1)
    assert token_logprobs(logits, tokens).tolist() == pytest.approx(expected.tolist(), abs=1e-6)
