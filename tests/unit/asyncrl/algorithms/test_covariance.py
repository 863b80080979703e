"""Which tokens are selected over a mini-batch, and what the losses do with them."""

from functools import partial

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.covariance import clip_cov, clip_cov_selected, covariances, kl_cov, kl_cov_selected
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.rejection import minimum_variance_selected

NAN, INF = float("nan"), float("inf")

ANY = partial(clip_cov_selected, lower=-INF, upper=INF, low=0.2, high=0.2)


def mini_batch(num: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logprobs, proximal, sampler and advantages of tokens whose ratio is 1."""
    rng = torch.Generator().manual_seed(seed)
    logprobs = -3 * torch.rand(num, generator=rng)
    return logprobs, logprobs.clone(), logprobs.clone(), torch.randn(num, generator=rng)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_mean_of_the_covariances_is_the_covariance_of_the_two() -> None:
    logprobs, _, _, advantages = mini_batch(1000)
    expected = torch.stack([logprobs, advantages]).double().cov(correction=0)[0, 1]
    torch.testing.assert_close(covariances(logprobs, advantages).mean(), expected)


def test_tokens_that_are_not_finite_are_in_no_mean_and_are_never_selected() -> None:
    tokens = mini_batch(6)
    dirty = tuple(torch.cat([part, part[:2]]) for part in tokens)
    dirty[0][6], dirty[3][7] = -INF, NAN
    torch.testing.assert_close(covariances(dirty[0], dirty[3])[:6], covariances(tokens[0], tokens[3]))
    for rule in (partial(ANY, share=1.0), partial(kl_cov_selected, share=1.0)):
        assert rule(*dirty, generator=seeded()).tolist() == [True] * 6 + [False] * 2


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (2e-4, 1), (0.0299, 2), (0.5, 50), (1.0, 100)])
def test_the_share_is_of_all_tokens_rounded_down_and_at_least_one(share: float, expected: int) -> None:
    for rule in (partial(ANY, share=share), partial(kl_cov_selected, share=share)):
        assert rule(*mini_batch(100), generator=seeded()).sum() == expected


def test_a_mini_batch_without_tokens_selects_none() -> None:
    for rule in (partial(ANY, share=1.0), partial(kl_cov_selected, share=1.0)):
        assert rule(*mini_batch(0), generator=seeded()).shape == (0,)


def test_kl_cov_takes_the_largest_covariances() -> None:
    tokens = mini_batch(50)
    selected = kl_cov_selected(*tokens, share=0.1, generator=seeded())
    cov = covariances(tokens[0], tokens[3])
    assert cov[selected].min() > cov[~selected].max()


def test_clip_cov_draws_within_the_bounds_by_the_seed_alone() -> None:
    tokens = mini_batch(400)
    draw = partial(clip_cov_selected, *tokens, share=0.05, lower=0.2, upper=2.0, low=0.2, high=0.2)
    selected = draw(generator=seeded(1))
    cov = covariances(tokens[0], tokens[3])[selected]
    assert len(cov) == 20
    assert ((cov > 0.2) & (cov < 2.0)).all()
    assert torch.equal(selected, draw(generator=seeded(1)))
    assert not torch.equal(selected, draw(generator=seeded(2)))


def test_clip_cov_leaves_alone_what_the_clip_of_ppo_already_holds() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    proximal = logprobs - torch.tensor([1.3, 1.3, 0.7, 0.7]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    selected = ANY(logprobs, proximal, proximal, advantages, share=1.0, generator=seeded())
    assert selected.tolist() == [False, True, True, False]


def one_row(selected: list[bool], ratios: list[float], advantages: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    leaf = torch.tensor([ratios]).log().requires_grad_()
    return leaf, torch.tensor([advantages]), torch.tensor([selected])


def test_clip_cov_gives_selected_tokens_neither_loss_nor_gradient_and_keeps_them_in_the_count() -> None:
    leaf, advantages, selected = one_row([True, False, False], [1.0, 1.0, 1.5], [1.0, 1.0, 1.0])
    mask = torch.ones_like(selected)
    tokens = clip_cov(leaf, torch.zeros(1, 3), advantages, mask, selected_BT=selected, low=0.2, high=0.2)
    tokens.loss_BT.sum().backward()
    torch.testing.assert_close(tokens.loss_BT, torch.tensor([[0.0, -1.0, -1.2]]))
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[0.0, -1.0, 0.0]]
    assert finish(tokens.metrics)["clip_frac"] == pytest.approx(1 / 3)


def test_kl_cov_pulls_selected_tokens_back_on_either_side() -> None:
    leaf, advantages, selected = one_row([True, True, False, True], [1.5, 0.5, 1.5, 1.0], [1.0, 1.0, 1.0, 1.0])
    mask = torch.ones_like(selected)
    tokens = kl_cov(leaf, torch.zeros(1, 4), advantages, mask, selected_BT=selected, penalty=0.1)
    tokens.loss_BT.sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, torch.tensor([[-1.5 + 0.1, -0.5 - 0.1, -1.5, -1.0]]))


def test_m2po_selects_the_few_that_disagree_most_until_the_rest_is_within_the_threshold() -> None:
    proximal = torch.tensor([0.0, 0.1, -0.1, 3.0, 0.2])
    arguments = (proximal, proximal, torch.zeros(5), torch.ones(5))
    selected = minimum_variance_selected(*arguments, threshold=0.04, generator=seeded())
    assert selected.tolist() == [False, False, False, True, False]
